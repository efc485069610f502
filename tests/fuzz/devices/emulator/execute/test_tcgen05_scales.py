"""tcgen05.mma of narrow numbers and with block scales, in plain PTX; tcgen05.cp that makes bytes of packed numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product

import pytest
import torch
from ptx_tools import kinds
from tcgen05_scaled import Product

from fuzz.devices.emulator.decode.decoder import Unimplemented

FORMS = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")
MXF8 = Product("mxf8f6f4", "e4m3", "e4m3", 1)
NVF4 = Product("mxf4nvf4", factors=4, qualifier="scale_vec::4X", scale="ue4m3")
DESCRIPTOR = "wrong operand of tcgen05"
COPIES = "copies in tensor memory that differ"


def check(form: Product, **options):
    report, out, expected = form.run(**options)
    assert report.ok, str(report)
    assert torch.equal(out.double(), expected)


@pytest.mark.parametrize(("a", "b"), [*zip(FORMS, FORMS, strict=True), ("e2m1", "e5m2"), ("e3m2", "e2m3")])
def test_products_of_narrow_numbers(a, b):
    check(Product("f8f6f4", a, b))


@pytest.mark.parametrize(
    "form",
    [
        *(Product("mxf8f6f4", x, x, 1) for x in FORMS),
        Product("mxf8f6f4", "e2m1", "e4m3", 1, "scale_vec::1X", byte=2, n=8),
        Product("mxf8f6f4", "e4m3", "e3m2", 1, "block32", byte=3),
        Product("mxf4", factors=2), Product("mxf4", factors=2, qualifier="scale_vec::2X", byte=2, n=16),
        Product("mxf4nvf4", factors=2, qualifier="block32"),
        NVF4, replace(NVF4, qualifier="block16", scale="ue8m0"),
    ],
    ids=lambda form: f"{form.kind}-{form.a}-{form.b}-{form.qualifier}-{form.scale}-{form.byte}",
)  # fmt: skip
def test_products_with_block_scales(form):
    check(form)


@pytest.mark.parametrize("form", [MXF8, replace(MXF8, a="e2m1", b="e2m1", n=32), NVF4], ids=["mxf8", "e2m1", "nvf4"])
def test_products_with_block_scales_of_two_ctas(form):
    check(replace(form, pair=True))


@pytest.mark.parametrize(("a", "format"), [("e4m3", ""), ("e2m3", ".b8x16.b6x16_p32"), ("e2m1", ".b8x16.b4x16_p64")])
def test_a_in_tensor_memory_is_made_of_bytes(a, format):
    """Which tcgen05.cp makes of the packed numbers of shared memory."""
    copy = f"tcgen05.cp.cta_group::1.128x256b{format}"
    for form in (Product("f8f6f4", a, "e5m2"), Product("mxf8f6f4", a, "e5m2", 1)):
        check(replace(form, a_in_tensor_memory=True, copies_a=copy))


def test_a_in_tensor_memory_of_packed_numbers():
    check(replace(NVF4, a_in_tensor_memory=True))


TWICE = "tcgen05.cp.cta_group::2.64x128b.warpx2::02_13"  # each row to a lane and to the one 64 further
HALF = Product("f8f6f4", "e4m3", "e5m2", pair=True, half=True, a_in_tensor_memory=True, copies_a=TWICE)


def test_two_ctas_with_128_rows_and_a_in_tensor_memory():
    check(HALF)
    check(replace(HALF, a="e2m1", copies_a=f"{TWICE}.b8x16.b4x16_p64"))


def test_rows_that_are_in_one_half_of_the_lanes_only():
    report, _, _ = replace(HALF, copies_a="tcgen05.cp.cta_group::2.128x128b").run()
    assert kinds(report) == {COPIES}
    assert "issues a tcgen05.mma.cta_group::2.kind::f8f6f4 of two CTAs with M = 128 whose A in column" in str(report)


def test_a_factor_that_is_no_number():
    def change(images):
        images[0, 6144] = 255  # of row 0
        return images

    report, out, _ = MXF8.run(images=change(MXF8.operands()[0]))
    assert report.ok and out.isnan().any(1).nonzero().flatten().tolist() == [0]


def test_negated_numbers():
    form = replace(NVF4)
    for bits, sign in ((1 << 13, -1), (1 << 14, -1), (3 << 13, 1)):
        at = f"mov.b32 %r13, {form.instruction:#x};"
        changed = f"mov.b32 %r13, {form.instruction | bits:#x};"
        report, out, expected = form.run(lambda text, at=at, changed=changed: text.replace(at, changed))
        assert report.ok and torch.equal(out.double(), sign * expected)


SYNC = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"


@pytest.mark.parametrize("schedule", ["in_order", "random", "oldest_last", "greedy"])
def test_who_waits_for_a_commit_may_exit(schedule):
    """It is the last access of the even CTA to the odd one's shared memory. Who does not wait for it must not."""

    def alone(text):
        head, tail = text.rsplit(SYNC, 1)
        return head + tail

    def hasty(text):
        text = text.replace("WAIT: mbarrier", "setp.eq.u32 %q6, %r30, 1; @%q6 bra LEAVE; WAIT: mbarrier")
        return alone(text).replace("bar.sync 1;", "LEAVE: bar.sync 1;")

    form = replace(MXF8, pair=True)
    report, out, expected = form.run(alone, warp_schedule=schedule)
    assert report.ok and torch.equal(out.double(), expected), str(report)
    report, _, _ = form.run(hasty, warp_schedule=schedule)
    assert "shared memory of a CTA that has exited" in kinds(report), str(report)


# ---- what goes wrong


@pytest.mark.parametrize(
    ("form", "clear", "put"),
    [
        (MXF8, 1 << 23, 0), (MXF8, 0, 1 << 25), (MXF8, 7 << 7, 2 << 7), (MXF8, 0, 1 << 2), (MXF8, 0, 1 << 31),
        (NVF4, 0, 1 << 4), (NVF4, 0, 1 << 15), (NVF4, 7 << 7, 0), (Product("mxf4", factors=2), 1 << 23, 0),
        (Product("mxf4", factors=2), 0, 1 << 29), (Product("f8f6f4", "e2m1", "e2m1"), 7 << 7, 6 << 7),
        (MXF8, 31 << 24, 4 << 24), (MXF8, 63 << 17, 0),
    ],
)  # fmt: skip
def test_instruction_descriptors_that_ptx_does_not_define(form, clear, put):
    at, changed = (f"mov.b32 %r13, {x:#x};" for x in (form.instruction, form.instruction & ~clear | put))
    report, _, _ = form.run(lambda text: text.replace(at, changed))
    assert DESCRIPTOR in kinds(report), str(report)


def test_factors_that_are_not_in_all_quarters_of_the_lanes():
    report, _, _ = MXF8.run(lambda text: text.replace("32x128b.warpx4", "128x128b", 1))
    assert kinds(report) == {COPIES}
    assert re.search(r"scale factors in column 6\d of lane \d+ are not those of the other lanes", str(report))


def test_factors_that_nobody_copied():
    report, _, _ = MXF8.run(
        lambda text: text.replace("@%q2 tcgen05.cp.cta_group::1.32x128b.warpx4 [%r16], %d9;", "", 1)
    )
    assert kinds(report) == {"read of uninitialised tensor memory"}
    assert "reads, as scale factors, column 64, lanes 0 to 15 of tensor memory" in str(report)


def test_factors_overwritten_while_the_product_may_read_them():
    late = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r18], {%t}; tcgen05.wait::st.sync.aligned;"
    at = "WAIT: mbarrier"
    report, _, _ = MXF8.run(lambda text: text.replace(at, f"add.u32 %r18, %r11, 64; {late} {at}"))
    assert kinds(report) & {"tensor memory used before a tcgen05.commit was waited for", "race: tensor memory"}


def test_factors_of_two_ctas_that_differ():
    images = replace(MXF8, pair=True).operands()[0]
    images[1, 6656] += 1
    report, _, _ = replace(MXF8, pair=True).run(images=images)
    assert kinds(report) == {COPIES}


@pytest.mark.parametrize(
    "name",
    ["kind::mxf4nvf4.block_scale", "kind::mxf4.block_scale.scale_vec::4X", "kind::mxf8f6f4.block_scale.block16"],
)
def test_forms_that_ptx_does_not_have(name):
    old = "kind::mxf4nvf4.block_scale.scale_vec::4X"
    with pytest.raises(Unimplemented, match=name.replace(".", r"\.")):
        NVF4.run(lambda text: text.replace(old, name))


@pytest.mark.parametrize(("form", "put"), [(NVF4, 1 << 31), (replace(NVF4, pair=True), 0)])
def test_shapes_that_are_not_emulated(form, put):
    """K = 96; M = 128 of two CTAs."""
    changed = form.instruction | put if put else form.instruction & ~(31 << 24) | 8 << 24
    with pytest.raises(Unimplemented, match="with descriptor"):
        form.run(lambda text: text.replace(f"{form.instruction:#x};", f"{changed:#x};"))


# ---- tcgen05.cp


def unpacked(source, bits):
    """Bytes of tensor memory for each 16 of shared memory."""
    out = []
    for chunk in source.reshape(-1, 16).tolist():
        whole = int.from_bytes(bytes(chunk), "little")
        out += [(whole >> bits * e & (1 << bits) - 1) << (2 if bits == 4 else 0) for e in range(16)]
    return torch.tensor(out, dtype=torch.uint8)


CHUNKS = {"128x256b": 2, "128x128b": 1, "4x256b": 2, "64x128b.warpx2::02_13": 1, "32x128b.warpx4": 1}


@pytest.mark.parametrize(("shape", "bits"), [*product(("128x256b", "32x128b.warpx4"), (4, 6)), ("4x256b", 4),
                                             ("128x128b", 6), ("64x128b.warpx2::02_13", 4)])  # fmt: skip
def test_a_copy_makes_bytes_of_packed_numbers(shape, bits):
    from tcgen05_ptx import COMMIT, WAIT, descriptor
    from test_tcgen05 import lane_rows, run_moves, store_out, vector

    source = torch.randint(0, 256, (2, 128, 16), generator=torch.Generator().manual_seed(bits)).to(torch.uint8)
    out = torch.zeros(128, 8, dtype=torch.int32)
    rows = "".join(f"ld.global.v4.b32 {{%r2, %r3, %r4, %r5}}, [%d1+{2048 * c}];"
                   f"st.shared.v4.b32 [%r1+{2048 * c}], {{%r2, %r3, %r4, %r5}};" for c in range(2))  # fmt: skip
    zeros = "mov.u32 %r2, 0; tcgen05.st.sync.aligned.32x32b.x8.b32 [%r11], {%r2,%r2,%r2,%r2,%r2,%r2,%r2,%r2};"
    name = f"tcgen05.cp.cta_group::1.{shape}.b8x16.b{bits}x16_p{64 if bits == 4 else 32}"
    run_moves(f"""{zeros} tcgen05.wait::st.sync.aligned; mul.wide.u32 %d1, %t, 16; add.s64 %d1, %p1, %d1;
mad.lo.u32 %r1, %t, 16, %r0; {rows} @%q0 mbarrier.init.shared::cta.b64 [s+4608], 1; fence.proxy.async; bar.sync 0;
shr.u32 %r12, %r0, 4; cvt.u64.u32 %d5, %r12; add.s64 %d6, %d5, {descriptor(0, 2048, 128)};
@%q0 {name} [%r10], %d6; {COMMIT} {WAIT} tcgen05.fence::after_thread_sync;
tcgen05.ld.sync.aligned.32x32b.x8.b32 {vector(8)}, [%r11]; tcgen05.wait::ld.sync.aligned; {store_out(8)}""",
              [out, source.view(torch.int32)])  # fmt: skip
    expected = torch.zeros(128, 32, dtype=torch.uint8)
    for lane, row in enumerate(lane_rows(shape)[0]):
        for chunk in range(CHUNKS[shape] if row is not None else 0):
            expected[lane, 16 * chunk : 16 * chunk + 16] = unpacked(source[chunk, row], bits)
    assert torch.equal(out.view(torch.uint8).reshape(128, 32), expected)
