"""tcgen05 in plain PTX: which register has which cell of tensor memory, what cp copies where, and what mma computes.

The layouts of tcgen05.ld and .cp that are expected here are those of CUTLASS (cute/atom/copy_traits_sm100.hpp, of
version 4.7), which runs on the hardware: shapes and strides from (thread, value) to bits of 16 or 32 lanes.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch
from ptx_tools import Emulator, kernel
from tcgen05_ptx import (
    ALLOC,
    BARRIER,
    COLUMNS,
    COMMIT,
    FIRST,
    FREE,
    INSTRUCTION,
    MMA,
    RELINQUISH,
    WAIT,
    K,
    descriptor,
    operands,
    run,
    run_small,
)

from fuzz.devices.emulator import EmulationError
from fuzz.devices.emulator.decode.decoder import Unimplemented

# shape: bits of a lane for .x1, then for .xN the modes of (thread, value): sizes, and strides in bits
LAYOUTS = {
    "32x32b": (32, lambda n: ([(32, 32 * n)], [(32 * n, 1)])),
    "16x64b": (64, lambda n: ([(2, 512 * n), (2, 32), (8, 64 * n)], [(32, 1), (n, 64)])),
    "16x128b": (128, lambda n: ([(4, 32), (8, 128 * n)], [(32, 1), (2, 1024 * n), (n, 128)])),
    "16x256b": (256, lambda n: ([(4, 64), (8, 256 * n)], [(64, 1), (2, 2048 * n), (n, 256)])),
    "16x32bx2": (64, lambda n: ([(16, 64 * n), (2, 32 * n)], [(32 * n, 1)])),
}
MOST = {"32x32b": 128, "16x64b": 128, "16x128b": 64, "16x256b": 32, "16x32bx2": 128}
COUNTS = [(shape, n) for shape, most in MOST.items() for n in (1, 2, 4, 8, 16, 32, 64, 128) if n <= most]
TWICE = ("16x32bx2",)


def offsets(modes):
    """Strides times coordinates, the first mode fastest."""
    ranges = [range(size) for size, _ in reversed(modes)]
    strides = [stride for _, stride in reversed(modes)]
    return [sum(i * s for i, s in zip(at, strides, strict=True)) for at in product(*ranges)]


def cells(shape, n):
    """(lane, column) of register i of thread t, [t][i]."""
    wide, layout = LAYOUTS[shape]
    threads, values = (offsets(modes) for modes in layout(n))
    values = values[::32]  # whole registers
    return [[divmod((t + v) // 32, wide * n // 32) for v in values] for t in threads]


def registers_of(shape, n):
    return len(cells(shape, n)[0])


def fill(columns=512):
    """Every cell of the warp's lanes becomes 1024 lane + column."""
    return f"""mov.u32 %r14, 0; mov.u32 %r16, %r11; shl.b32 %r15, %t, 10;
FILL: tcgen05.st.sync.aligned.32x32b.x1.b32 [%r16], {{%r15}}; tcgen05.wait::st.sync.aligned;
add.u32 %r16, %r16, 1; add.u32 %r15, %r15, 1; add.u32 %r14, %r14, 1; setp.lt.u32 %q5, %r14, {columns}; @%q5 bra FILL;"""


def run_moves(body, out, block=128):
    """Runs with all 512 columns, the base in %r10, that of the warp's lanes in %r11."""
    text = f"""{{ .reg .b32 %v<128>;
{FIRST} mov.u32 %r0, s; {ALLOC.replace("32;", "512;")} {RELINQUISH} {BARRIER}
ld.shared.b32 %r10, [s+4616]; and.b32 %r11, %t, 96; shl.b32 %r11, %r11, 16; add.u32 %r11, %r10, %r11;
{body}
{BARRIER} {FREE.replace("32;", "512;")} }}"""
    given = out if isinstance(out, list) else [out]
    report = Emulator(strict=False).load_ptx(kernel(text, len(given), 32768)).launch(None, (1,), (block,), given)
    assert report.ok, str(report)


def vector(count):
    return "{" + ", ".join(f"%v{i}" for i in range(count)) + "}"


def store_out(count):
    return f"mul.wide.u32 %d0, %t, {4 * count}; add.s64 %d0, %p0, %d0;" + "".join(
        f"st.global.b32 [%d0+{4 * i}], %v{i};" for i in range(count)
    )


@pytest.mark.parametrize("half", [0, 16])
@pytest.mark.parametrize("shape,n", COUNTS)
def test_a_load_gives_each_thread_the_cells_of_its_shape(shape, n, half):
    if shape == "32x32b" and half:
        return
    count = registers_of(shape, n)
    out = torch.zeros(128, count, dtype=torch.int32)
    split = f", {n}" if shape in TWICE else ""
    base = half << 16
    run_moves(
        f"{fill()} tcgen05.ld.sync.aligned.{shape}.x{n}.b32 {vector(count)}, [%r11+{base}]{split};"
        f"tcgen05.wait::ld.sync.aligned; {store_out(count)}",
        out,
    )
    at = cells(shape, n)
    expected = [[1024 * (t // 32 * 32 + half + lane) + column for lane, column in at[t % 32]] for t in range(128)]
    assert torch.equal(out, torch.tensor(expected, dtype=torch.int32))


@pytest.mark.parametrize("shape,n", [("32x32b", 8), ("16x64b", 4), ("16x128b", 2), ("16x256b", 4), ("16x32bx2", 8)])
def test_a_store_is_the_mirror_image_of_a_load(shape, n):
    count = registers_of(shape, n)
    wide = LAYOUTS[shape][0] * n // 32
    out = torch.zeros(128, wide, dtype=torch.int32)
    split = f", {n}" if shape in TWICE else ""
    values = "".join(f"mad.lo.u32 %v{i}, %t, 1024, {i};" for i in range(count))
    run_moves(
        f"{fill(64)} {values} tcgen05.st.sync.aligned.{shape}.x{n}.b32 [%r11]{split}, {vector(count)};"
        f"tcgen05.wait::st.sync.aligned; tcgen05.ld.sync.aligned.32x32b.x{wide}.b32 {vector(wide)}, [%r11];"
        f"tcgen05.wait::ld.sync.aligned; {store_out(wide)}",
        out,
    )
    expected = torch.tensor([[1024 * t + column for column in range(wide)] for t in range(128)], dtype=torch.int32)
    for t in range(128):
        for i, (lane, column) in enumerate(cells(shape, n)[t % 32]):
            expected[t // 32 * 32 + lane, column] = 1024 * t + i
    assert torch.equal(out, expected)


@pytest.mark.parametrize("shape,n", [("32x32b", 4), ("16x64b", 2), ("16x128b", 2), ("16x256b", 1), ("16x32bx2", 2)])
def test_packed_moves_take_the_lower_halves_of_two_columns(shape, n):
    count = registers_of(shape, n)
    out = torch.zeros(128, 2 * count, dtype=torch.int32)
    split = f", {2 * n}" if shape in TWICE else ""
    move = f"sync.aligned.{shape}.x{n}"
    back = "".join(f"mov.b32 %v{count + i}, %v{i};" for i in range(count))
    run_moves(
        f"{fill(64)} tcgen05.ld.{move}.pack::16b.b32 {vector(count)}, [%r11]{split}; tcgen05.wait::ld.sync.aligned;"
        f"{back} add.u32 %r12, %r11, 128; tcgen05.st.{move}.unpack::16b.b32 [%r12]{split}, {vector(count)};"
        f"tcgen05.wait::st.sync.aligned; tcgen05.ld.{move}.pack::16b.b32 {vector(count)}, [%r12]{split};"
        f"tcgen05.wait::ld.sync.aligned; {store_out(2 * count)}",
        out,
    )
    at = cells(shape, n)
    expected = []
    for t in range(128):
        row = []
        for lane, column in at[t % 32]:
            low = (1024 * (t // 32 * 32 + lane) + 2 * column) & 0xFFFF
            row.append((low + 1) << 16 | low)
        expected.append(row + row)
    assert torch.equal(out, torch.tensor(expected).to(torch.int32))


# ---- shared memory to tensor memory


def lane_rows(shape):
    """Row of shared memory that each lane gets (None: it keeps what it has), and the words of a row."""
    every = range(128)
    return {
        "128x256b": ([*every], 8), "128x128b": ([*every], 4),
        "4x256b": ([i // 32 if i % 32 == 0 else None for i in every], 8),
        "64x128b.warpx2::02_13": ([i % 64 for i in every], 4),
        "64x128b.warpx2::01_23": ([i // 64 * 32 + i % 32 for i in every], 4),
        "32x128b.warpx4": ([i % 32 for i in every], 4),
    }[shape]  # fmt: skip


@pytest.mark.parametrize("shape", ["128x256b", "128x128b", "4x256b", "64x128b.warpx2::02_13", "64x128b.warpx2::01_23",
                                   "32x128b.warpx4"])  # fmt: skip
def test_a_copy_brings_rows_of_shared_memory_to_lanes(shape):
    out = torch.zeros(128, 8, dtype=torch.int32)
    rows = "".join(
        f"mad.lo.u32 %r4, %t, 8, {4 * c + i}; st.shared.b32 [%r1+{2048 * c + 4 * i}], %r4;"
        for c in range(2) for i in range(4)
    )  # fmt: skip
    body = f"""{fill(8)} mad.lo.u32 %r1, %t, 16, %r0; {rows}
@%q0 mbarrier.init.shared::cta.b64 [s+4608], 1; fence.proxy.async.shared::cta; bar.sync 0;
shr.u32 %r12, %r0, 4; cvt.u64.u32 %d5, %r12; add.s64 %d6, %d5, {descriptor(0, 2048, 128)};
@%q0 tcgen05.cp.cta_group::1.{shape} [%r10], %d6; {COMMIT} {WAIT} tcgen05.fence::after_thread_sync;
tcgen05.ld.sync.aligned.32x32b.x8.b32 {vector(8)}, [%r11]; tcgen05.wait::ld.sync.aligned; {store_out(8)}"""
    run_moves(body, out)
    rows_of, words = lane_rows(shape)
    expected = [
        [8 * row + i if row is not None and i < words else 1024 * lane + i for i in range(8)]
        for lane, row in enumerate(rows_of)
    ]
    assert torch.equal(out, torch.tensor(expected, dtype=torch.int32))


# ---- products


def exact(negate_a=1, negate_b=1):
    a, b = operands()
    return negate_a * negate_b * (a.float() @ b.float().T)


def twice(mma=MMA):
    """The product added to itself by a second instruction."""
    return (COMMIT, f"setp.eq.u32 %q4, 0, 0; {mma} {COMMIT}")


def test_a_second_product_is_added():
    assert torch.equal(run(twice())[1], 2 * exact())


@pytest.mark.parametrize("scale", [0, 1, 3])
def test_scale_input_d_divides_what_is_added_to(scale):
    report, out = run(twice(MMA.replace("%q4;", f"%q4, {scale};")))
    assert report.ok and torch.equal(out, exact() + exact() / 2**scale)


@pytest.mark.parametrize("bits,sign", [(1 << 13, -1), (1 << 14, -1), (3 << 13, 1)])
def test_negated_operands(bits, sign):
    report, out = run((f"mov.b32 %r13, {INSTRUCTION};", f"mov.b32 %r13, {INSTRUCTION | bits};"))
    assert report.ok and torch.equal(out, sign * exact())


def test_lanes_that_are_disabled_keep_what_they_have():
    lanes = "{1, 4294967295, 0, 2147483648}"
    off = [0, *range(32, 64), 127]
    report, out = run(twice(MMA.replace("%q4;", f"{lanes}, %q4;")))
    expected = 2 * exact()
    expected[off] = exact()[off]
    assert report.ok and torch.equal(out, expected)


def test_sums_in_f16_are_the_lower_halves_of_words():
    half = INSTRUCTION & ~(3 << 4 | 63 << 7)
    a, b = operands()
    pairs = (f"mov.b32 %r13, {INSTRUCTION};", f"mov.b32 %r13, {half};")
    report, out = run(pairs, numbers=(a.half(), b.half()))
    words = out.view(torch.int32)
    assert report.ok and (words >> 16).eq(0).all()
    assert torch.equal(words.to(torch.int16).view(torch.float16).float(), exact())


def test_every_lane_that_issues_a_product_adds_it():
    """tcgen05.mma has the semantics of a single thread: without elect.sync a warp issues 32 of them."""
    zeros = twice(MMA.replace("@%q0", "@%q1"))
    assert torch.equal(run(zeros)[1], 33 * exact())


@pytest.mark.parametrize("signed", [0, 1])
def test_products_of_integers(signed):
    wanted = torch.int8 if signed else torch.uint8
    generator = torch.Generator().manual_seed(2)
    a, b = (torch.randint(-128, 128, (rows, 2 * K), generator=generator).to(wanted) for rows in (128, COLUMNS))
    idesc = 2 << 4 | signed << 7 | signed << 10 | COLUMNS >> 3 << 17 | 8 << 24
    report, out = run(
        (f"mov.b32 %r13, {INSTRUCTION};", f"mov.b32 %r13, {idesc};"), (MMA, MMA.replace("kind::f16", "kind::i8")),
        numbers=(a.view(torch.int16), b.view(torch.int16)),
    )  # fmt: skip
    assert report.ok and torch.equal(out.view(torch.int32), (a.long() @ b.long().T).int())


def test_a_nan_becomes_the_one_that_ptx_produces():
    a, b = operands()
    a[5, 3] = float("nan")
    report, out = run(numbers=(a, b))
    assert report.ok and out.isnan().any(1).nonzero().flatten().tolist() == [5]
    assert (out[5].view(torch.int32) == 0x7FFFFFFF).all()


# ---- columns


def test_an_alloc_waits_until_another_warp_frees_columns():
    """Warp 1 wants all columns, while warp 0 has them."""
    out = torch.zeros(1, dtype=torch.int32)
    body = f"""{FIRST} setp.ge.u32 %q2, %t, 32; {ALLOC.replace("32;", "512;")} bar.sync 0;
ld.shared.b32 %r10, [s+4616];
@%q2 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [s+4620], 512;
{FREE.replace("32;", "512;")} @!%q2 bra END; ld.shared.b32 %r10, [s+4620];
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r10, 512; END:"""
    for schedule in ("in_order", "oldest_last", "greedy"):
        text = kernel(body, 1, 8192)
        assert Emulator(warp_schedule=schedule).load_ptx(text).launch(None, (1,), (64,), [out]).ok
    deadlocked = text.replace(FREE.replace("32;", "512;"), "bar.sync 1;")
    report = Emulator(strict=False).load_ptx(deadlocked).launch(None, (1,), (64,), [out])
    assert report.status == "deadlock"
    assert "waits for columns of tensor memory, of which 512 are taken" in str(report.deadlock)


@pytest.mark.parametrize("share", [1, 2])
def test_ctas_of_one_sm_share_its_columns(share):
    """Each CTA wants 512 columns: where two share them, the second waits until the first frees its own."""
    out = torch.zeros(4, dtype=torch.int32)
    body = f"""{FIRST} {ALLOC.replace("32;", "512;")} ld.shared.b32 %r10, [s+4616];
@%q0 atom.global.add.u32 %r1, [%p0], 1; ld.volatile.global.b32 %r2, [%p0];
{FREE.replace("32;", "512;")}"""
    report = (
        Emulator(ctas_per_sm=share, resident_ctas=4).load_ptx(kernel(body, 1, 8192)).launch(None, (6,), (32,), [out])
    )
    assert report.ok and out[0] == 6
    kept = body.replace(
        FREE.replace("32;", "512;"), "W: ld.volatile.global.b32 %r2, [%p0]; setp.lt.u32 %q5, %r2, 2; @%q5 bra W;"
    )
    second = Emulator(ctas_per_sm=share, resident_ctas=2, strict=False).load_ptx(kernel(kept, 1, 8192))
    assert second.launch(None, (2,), (32,), [torch.zeros_like(out)]).status == (
        "finished" if share == 1 else "deadlock"
    )


def test_a_number_of_ctas_of_an_sm_below_one_is_refused():
    with pytest.raises(ValueError, match="ctas_per_sm must be at least 1, not 0"):
        Emulator(ctas_per_sm=0)


# ---- what is not there


@pytest.mark.parametrize(
    "instruction",
    [
        "tcgen05.mma.ws.cta_group::1.kind::f16 [%r10], %d6, %d7, %r13, %q4;",
        "tcgen05.mma.sp.cta_group::1.kind::f16 [%r10], %d6, %d7, [%r11], %r13, %q4;",
        "tcgen05.mma.ws.cta_group::1.kind::mxf8f6f4.block_scale [%r10], %d6, %d7, %r13, [%r11], [%r11], %q4;",
        "tcgen05.shift.cta_group::1.down [%r10];",
        "tcgen05.ld.red.sync.aligned.32x32b.x2.min.f32 {%r20, %r21}, %r22, [%r11];",
        "tcgen05.cp.cta_group::1.128x256b.b8x16.b6x16_p64 [%r10], %d6;",
    ],
)
def test_forms_that_are_not_emulated_are_refused_by_name(instruction):
    with pytest.raises(Unimplemented) as error:
        run_small(instruction)
    assert f"instruction {instruction.split()[0]!r} is not emulated: " in str(error.value)
    assert "PTX line" in str(error.value) and "\n" not in str(error.value)


def test_the_refusal_of_an_instruction_names_its_source_line():
    with pytest.raises(Unimplemented, match=r"is not emulated: .* \(attention\.py:41, PTX line \d+, kernel k\)"):
        run_small("tcgen05.shift.cta_group::1.down [%r10];".join(['\n.file 1 "attention.py"\n.loc 1 41 0\n', ""]))


def test_strict_runs_raise_with_the_sentence():
    with pytest.raises(EmulationError, match="tensor memory never freed"):
        run((FREE, ""), strict=True)
