"""Bulk copies (TMA): what they move, with tensor maps and without, and what is found where they are used wrongly."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field

import pytest
import torch
from ptx_tools import HEADER, Emulator, kinds

from fuzz.devices.emulator import Report, TiledTensor
from fuzz.devices.emulator.decode.decoder import Unimplemented
from fuzz.devices.emulator.host.tiled_tensor import MappedTensor
from fuzz.devices.emulator.tensor_map import F32, F32_FTZ, TF32, TF32_FTZ, U4, U4_PADDED, U6_PADDED, TensorMap

SHARED = 16384
RACE_WR = "race: read of an unordered write"
RACE_RW = "race: write over an unordered read"
UNFENCED = "shared memory accessed by a bulk copy without fence.proxy.async"
LEFT = "bulk copy in flight when its CTA exits"

# thread 0 initialises two mbarriers behind the buffer, for one arrival each
BEGIN = f"""setp.ne.u32 %other, %t, 0;
@!%other mbarrier.init.shared.b64 [s+{SHARED}], 1;
@!%other mbarrier.init.shared.b64 [s+{SHARED + 8}], 1;
bar.sync 0;"""
EXPECT = "@!%other mbarrier.arrive.expect_tx.shared.b64 _, [s+{at}], {count};"
WAIT = "W{n}: mbarrier.try_wait.parity.shared.b64 %done, [s+{at}], {parity}; @!%done bra W{n};"
# thread t takes the words t, t + n, … of the buffer to the tensor `out`
OUT = """mov.b32 %i, %t;
O: setp.ge.u32 %done, %i, {words}; @%done bra OE;
mul.wide.u32 %d0, %i, 4; cvt.u32.u64 %r0, %d0; mov.b32 %r1, s; add.s32 %r1, %r1, %r0;
ld.shared.b32 %r2, [%r1]; add.s64 %d0, %out, %d0; st.global.b32 [%d0], %r2;
add.s32 %i, %i, %n; bra O; OE:"""


def kernel(body: str) -> str:
    """A kernel of a tensor map `map`, a tensor %x and a tensor %out."""
    return f"""{HEADER.replace("sm_80", "sm_90a")}
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 x, .param .u64 out)
{{
.reg .pred %other, %done, %odd; .reg .b32 %t, %n, %i, %r<8>; .reg .b64 %x, %out, %m, %d<8>;
.shared .align 1024 .b8 s[{SHARED + 16}];
ld.param.b64 %x, [x]; ld.param.b64 %out, [out]; mov.b64 %m, map; cvta.param.u64 %m, %m; mov.u32 %t, %tid.x;
mov.u32 %n, %ntid.x; mov.b64 %d7, 0x12F0000000000000;
{body}
ret;
}}"""


def run(
    body: str, tiled: TiledTensor | bytes, x: torch.Tensor, out: torch.Tensor, threads: int = 32, **options
) -> Report:
    module = Emulator(**{"strict": False, **options}).load_ptx(kernel(body))
    return module.launch("k", (1,), (threads,), (tiled, x, out))


@dataclass(frozen=True, eq=False)
class Changed(TiledTensor):
    """A tensor map with words of its own: {number: word}."""

    words: dict[int, int] = field(default_factory=dict)

    def encode(self, address: int) -> bytes:
        words = list(struct.unpack("<32I", super().encode(address)))
        for i, word in self.words.items():
            words[i] = word
        return struct.pack("<32I", *words)


def load(rank: int, at: tuple[int, ...], barrier: int = SHARED, to: int = 0) -> str:
    form = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
    coordinates = ", ".join(map(str, reversed(at)))
    return f"@!%other {form} [s+{to}], [%m, {{{coordinates}}}], [s+{barrier}], %d7;"


def loaded(tiled: TiledTensor, at: tuple[int, ...]) -> torch.Tensor:
    """The box that a load brings, flat, as the tensor's dtype: elements one after the other, without a swizzle."""
    x, steps = tiled.tensor, tiled.element_strides or (1,) * tiled.tensor.dim()
    steps = (*steps[:-1], 1)
    index = [start + torch.arange(0, size, step) for start, size, step in zip(at, tiled.box, steps, strict=True)]
    inside = [(i >= 0) & (i < n) for i, n in zip(index, x.shape, strict=True)]
    fill = math.nan if tiled.fill == "nan" else 0
    box = torch.full([len(i) for i in index], fill, dtype=x.dtype)
    mesh = torch.meshgrid(*inside, indexing="ij")
    there = torch.stack(mesh).all(0)
    positions = torch.meshgrid(*[i.clamp(0, n - 1) for i, n in zip(index, x.shape, strict=True)], indexing="ij")
    box[there] = x[positions][there]
    return box.flatten()


def swizzled(box: torch.Tensor, span: int) -> torch.Tensor:
    """Bytes as the swizzle lays them out: 16 bytes at `a` lie at a with bits 4 … exclusive-ored with bits 7 …."""
    raw = box.contiguous().view(torch.uint8).view(-1, 16)
    a = 16 * torch.arange(len(raw))
    to = a ^ ((a >> 7) << 4 & span - 16)
    laid = torch.zeros_like(raw)
    laid[to // 16] = raw
    return laid.flatten()


@pytest.mark.parametrize(
    ("shape", "box", "at", "dtype"),
    [
        ((40,), (16,), (8,), torch.float16),
        ((9, 24), (4, 16), (6, 16), torch.bfloat16),
        ((9, 24), (4, 16), (-2, -8), torch.float32),
        ((3, 5, 16), (2, 3, 16), (2, 3, 0), torch.int32),
        ((2, 3, 4, 16), (1, 2, 3, 8), (1, 2, 2, 4), torch.float64),
        ((2, 2, 3, 4, 32), (2, 1, 2, 4, 32), (1, 1, 2, 1, 16), torch.uint8),
        ((2, 2, 3, 4, 32), (2, 1, 2, 4, 32), (9, 1, 2, 1, 16), torch.uint8),
    ],
)
def test_a_load_brings_the_box_and_fills_what_lies_outside(shape, box, at, dtype):
    x = torch.arange(1, 1 + math.prod(shape)).view(shape).to(dtype)
    tiled = TiledTensor(x, box)
    size = math.prod(box) * x.element_size()
    body = BEGIN + EXPECT.format(at=SHARED, count=size) + load(len(shape), at) + WAIT.format(n=0, at=SHARED, parity=0)
    out = torch.zeros(size // 4, dtype=torch.int32)
    report = run(body + OUT.format(words=size // 4), tiled, x, out)
    assert report.ok, str(report)
    assert torch.equal(out.view(torch.uint8), loaded(tiled, at).view(torch.uint8))


@pytest.mark.parametrize(("swizzle", "span"), [("32B", 32), ("64B", 64), ("128B", 128)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_swizzle_permutes_sixteen_bytes_at_a_time(swizzle, span, dtype):
    columns = span // dtype.itemsize
    x = torch.randn(40, 2 * columns).to(dtype)
    tiled, at = TiledTensor(x, (24, columns), swizzle), (20, columns)
    size = 24 * span
    body = BEGIN + EXPECT.format(at=SHARED, count=size) + load(2, at) + WAIT.format(n=0, at=SHARED, parity=0)
    out = torch.zeros(size // 4, dtype=torch.int32)
    report = run(body + OUT.format(words=size // 4), tiled, x, out)
    assert report.ok, str(report)
    assert torch.equal(out.view(torch.uint8), swizzled(loaded(tiled, at), span))


def test_nan_fill_and_element_strides():
    x = torch.randn(12, 16)
    tiled, at = TiledTensor(x, (6, 16), fill="nan", element_strides=(2, 1)), (9, 4)
    body = BEGIN + EXPECT.format(at=SHARED, count=3 * 64) + load(2, at) + WAIT.format(n=0, at=SHARED, parity=0)
    out = torch.zeros(3 * 16)
    assert run(body + OUT.format(words=48), tiled, x, out).ok
    right = loaded(tiled, at).view(torch.int32)
    right[loaded(tiled, at).isnan()] = 0x7FF77FF7
    assert torch.equal(out.view(torch.int32), right)


def test_a_load_rounds_to_tf32():
    """Ties go to the even number, as on an H200."""
    given = [0x3F801000, 0x3F800FFF, 0xBF803000, 0x00003000, 0x7F800000, 0x7FFFF000, 0xFF800001, 0x12345678]
    x = torch.tensor([v - (v >> 31 << 32) for v in given], dtype=torch.int32).view(torch.float32).repeat(2)
    word = struct.unpack("<32I", TiledTensor(x, (16,)).encode(0))[2]
    body = BEGIN + EXPECT.format(at=SHARED, count=64) + load(1, (0,)) + WAIT.format(n=0, at=SHARED, parity=0)
    out = torch.zeros(16, dtype=torch.int32)
    assert run(body + OUT.format(words=16), Changed(x, (16,), words={2: word | 1 << 16}), x, out).ok
    right = [0x3F800000, 0x3F800000, 0xBF804000, 0x00004000, 0x7F800000, 0x7FFFE000, 0x7FFFE000, 0x12346000]
    assert [v % (1 << 32) for v in out[:8].tolist()] == right


# every thread writes its words to the buffer; thread 0 stores it with the map
FILL = """mov.b32 %i, %t;
F: setp.ge.u32 %done, %i, {words}; @%done bra FE;
mul.wide.u32 %d0, %i, 4; cvt.u32.u64 %r0, %d0; mov.b32 %r1, s; add.s32 %r1, %r1, %r0;
add.s64 %d0, %x, %d0; ld.global.b32 %r2, [%d0]; st.shared.b32 [%r1], %r2;
add.s32 %i, %i, %n; bra F; FE:"""
FENCE = "fence.proxy.async.shared::cta; bar.sync 0;"
STORE = "@!%other cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%m, {{{at}}}], [s];"
GROUP = "@!%other cp.async.bulk.commit_group; @!%other cp.async.bulk.wait_group{read} 0;"


@pytest.mark.parametrize("swizzle", ["none", "128B"])
def test_a_store_writes_what_lies_inside_the_tensor(swizzle):
    x, out = torch.randn(8, 32), torch.zeros(10, 40)
    body = BEGIN + FILL.format(words=256) + FENCE + STORE.format(at="16, 5") + GROUP.format(read="")
    report = run(body, TiledTensor(out, (8, 32), swizzle), x, out)
    assert report.ok, str(report)
    right = torch.zeros(10, 40)
    laid = x.view(torch.uint8).view(-1, 16)
    a = 16 * torch.arange(64)
    box = laid[(a ^ ((a >> 7) << 4 & 112)) // 16].view(torch.float32).view(8, 32) if swizzle != "none" else x
    right[5:, 16:] = box[:5, :24]
    assert torch.equal(out, right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32])
def test_a_reduction_adds_to_what_is_there(dtype):
    x, out = torch.arange(256).to(dtype), torch.full((8, 32), 3).to(dtype)
    words = 256 * dtype.itemsize // 4
    reduce = STORE.format(at="0, 0").replace("cp.async", "cp.reduce.async").replace("cta.tile", "cta.add.tile")
    body = BEGIN + FILL.format(words=words) + FENCE + reduce + GROUP.format(read="")
    assert run(body, TiledTensor(out, (8, 32)), x, out).ok
    assert torch.equal(out, (x + 3).view(8, 32))


@pytest.mark.parametrize(
    ("form", "dtype"), [("add.f32", torch.float32), ("min.s32", torch.int32), ("xor.b32", torch.int32)]
)
def test_copies_without_a_map_move_and_combine_plain_bytes(form, dtype):
    x, out = torch.arange(64).to(dtype), torch.full((64,), 9).to(dtype)
    bring = "@!%other cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [%x], 256, [s+{at}];"
    send = f"@!%other cp.reduce.async.bulk.global.shared::cta.bulk_group.{form} [%out], [s], 256;"
    body = (BEGIN + EXPECT.format(at=SHARED, count=256) + bring.format(at=SHARED)
            + WAIT.format(n=0, at=SHARED, parity=0) + send + GROUP.format(read=""))  # fmt: skip
    report = run(body, bytes(128), x, out)
    assert report.ok, str(report)
    right = {"add.f32": x + 9, "min.s32": x.clamp(max=9), "xor.b32": x ^ 9 if dtype == torch.int32 else x}[form]
    assert torch.equal(out, right)


def test_more_copies_than_the_table_holds_are_each_carried_out_once():
    x, out = torch.ones(4), torch.zeros(4)
    reduce = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%out], [s], 16;"  # by 32 lanes
    body = f"""{BEGIN} ld.global.b32 %r0, [%x]; mul.lo.u32 %r1, %t, 4; mov.b32 %r2, s; add.u32 %r1, %r1, %r2;
    setp.lt.u32 %odd, %t, 4; @%odd st.shared.b32 [%r1], %r0; fence.proxy.async.shared::cta; bar.sync 0;
    {f"{reduce} cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;" * 9}"""
    assert run(body, bytes(128), x, out).ok
    assert out.tolist() == [9 * 32.0] * 4


# ---- what goes wrong: a right kernel, and one that lacks a line of it
TILED = TiledTensor(torch.randn(16, 32), (8, 32))
LOADED = BEGIN + EXPECT.format(at=SHARED, count=1024) + load(2, (0, 0)) + WAIT.format(n=0, at=SHARED, parity=0)


def copied(body: str, **options) -> Report:
    return run(body, TILED, TILED.tensor, torch.zeros(256, dtype=torch.int32), **options)


@pytest.mark.parametrize("schedule", ["in_order", "random", "oldest_last", "greedy"])
def test_a_right_kernel_has_no_finding(schedule):
    assert copied(LOADED + OUT.format(words=256), threads=64, warp_schedule=schedule).ok


def test_a_read_before_the_wait_is_a_race_with_the_copy_and_its_line():
    hasty = LOADED.replace(WAIT.format(n=0, at=SHARED, parity=0), "") + OUT.format(words=256)
    report = copied(hasty + WAIT.format(n=1, at=SHARED, parity=0))
    found = next(f for f in report.findings if f.kind == RACE_WR)
    line = next(n for n, text in enumerate(kernel(hasty).splitlines(), 1) if "cp.async.bulk.tensor" in text)
    assert f"which the bulk copy of PTX line {line} of CTA (0, 0, 0) writes" in str(found)


def test_a_wait_for_the_phase_before_is_none():
    assert RACE_WR in kinds(copied(LOADED.replace("], 0; @!%done", "], 1; @!%done") + OUT.format(words=256)
                                   + WAIT.format(n=1, at=SHARED, parity=0)))  # fmt: skip


def test_a_wait_for_another_mbarrier_is_none():
    other = SHARED + 8
    body = BEGIN + EXPECT.format(at=SHARED, count=1024) + EXPECT.format(at=other, count=1024)
    body += load(2, (0, 0)) + load(2, (8, 0), other, 1024) + WAIT.format(n=0, at=other, parity=0)
    assert RACE_WR in kinds(copied(body + OUT.format(words=256) + WAIT.format(n=1, at=SHARED, parity=0)))


@pytest.mark.parametrize(("count", "words"), [(1040, "16 bytes to come"), (1008, "16 bytes more than expected")])
def test_a_wrong_count_of_bytes_is_a_deadlock_that_says_how_many(count, words):
    report = copied(LOADED.replace("1024;", f"{count};"))
    assert report.status == "deadlock"
    assert f"mbarrier with 1 of 1 arrivals and {words}, phase 0" in str(report.deadlock)


def test_a_phase_that_nobody_loads_is_a_deadlock():
    assert copied(LOADED + WAIT.format(n=1, at=SHARED, parity=1)).status == "deadlock"


def test_a_load_over_what_others_still_read_is_a_race():
    """Warp 1 reads the first box while warp 0 loads the second one."""
    more = EXPECT.format(at=SHARED, count=1024) + load(2, (8, 0)) + WAIT.format(n=1, at=SHARED, parity=1)
    body = LOADED + "bar.sync 0;" + OUT.format(words=256)
    assert RACE_RW in kinds(copied(body + more, threads=64))
    assert copied(body + "bar.sync 0;" + more, threads=64).ok


STORED = BEGIN + FILL.format(words=256) + FENCE + STORE.format(at="0, 0") + GROUP.format(read=".read")
AGAIN = "@!%other st.shared.b32 [s+64], 5;"


def stored(body: str) -> Report:
    out = torch.zeros(16, 32)
    return run(body, TiledTensor(out, (8, 32)), torch.randn(256), out, threads=64)


def test_a_right_store_has_no_finding():
    assert stored(STORED + AGAIN).ok


def test_a_store_without_a_proxy_fence():
    assert UNFENCED in kinds(stored(STORED.replace("fence.proxy.async.shared::cta;", "")))


GLOBAL = "global memory accessed by a bulk copy without fence.proxy.async"
LATER = EXPECT.format(at=SHARED, count=1024) + "{load}" + WAIT.format(n=0, at=SHARED, parity=0)


def written_and_loaded(write: str, fence: str, load_of: str, **options) -> Report:
    x = torch.randn(16, 32)
    body = BEGIN + write + fence + LATER.format(load=load_of)
    return run(body, TiledTensor(x, (8, 32)), x, torch.zeros(4), threads=64, **options)


@pytest.mark.parametrize(
    ("fence", "right"),
    [
        ("", False),
        ("fence.proxy.async.shared::cta;", False),
        ("fence.proxy.async.global;", True),
        ("fence.proxy.async;", True),
    ],
)
@pytest.mark.parametrize(
    "write",
    [
        "@!%other st.global.b32 [%x+64], 5;",
        "setp.eq.u32 %odd, %t, 40; @%odd st.global.b32 [%x+64], 5; bar.sync 0;",
    ],
)
def test_a_load_of_global_memory_that_the_kernel_has_written(write, fence, right):
    """By the thread that loads, or by another one before a barrier: a proxy fence of global memory is between."""
    report = written_and_loaded(write, fence, load(2, (0, 0)))
    assert kinds(report) == (set() if right else {GLOBAL}), str(report)
    assert written_and_loaded(write, "", load(2, (8, 0))).ok  # another box


def test_a_writer_may_fence_before_it_lets_others_go_on():
    write = "setp.eq.u32 %odd, %t, 40; @%odd st.global.b32 [%x+64], 5; fence.proxy.async.global; bar.sync 0;"
    assert written_and_loaded(write, "", load(2, (0, 0))).ok
    early = "fence.proxy.async.global; " + write.replace("fence.proxy.async.global; ", "")
    assert kinds(written_and_loaded(early, "", load(2, (0, 0)))) == {GLOBAL}


def test_without_an_order_it_is_a_race_and_no_missing_fence():
    write = "setp.eq.u32 %odd, %t, 40; @%odd st.global.b32 [%x+64], 5;"
    assert kinds(written_and_loaded(write, "", load(2, (0, 0)), warp_schedule="oldest_last")) <= {RACE_WR, RACE_RW}


def test_a_store_over_global_memory_that_the_kernel_has_written():
    first = "@!%other st.global.b32 [%out+4], 5;"
    whole = "fence.proxy.async.shared::cta;"
    assert kinds(stored(STORED.replace(whole, first + whole))) == {GLOBAL}
    assert stored(STORED.replace(whole, first + "fence.proxy.async;")).ok


def test_what_a_store_wrote_needs_no_fence_once_it_is_complete():
    """PTX: the completion of a bulk copy is followed by an implicit fence between the proxies."""
    again = STORE.format(at="0, 0") + GROUP.format(read=".read")
    assert stored(STORED.replace(".read", "") + again).ok


def test_a_source_that_is_overwritten_before_it_was_read():
    assert RACE_RW in kinds(stored(STORED.replace("@!%other cp.async.bulk.wait_group.read 0;", AGAIN)
                                   + "@!%other cp.async.bulk.wait_group.read 0;"))  # fmt: skip


def test_a_store_that_nobody_waits_for():
    report = stored(STORED.replace("@!%other cp.async.bulk.wait_group.read 0;", ""))
    assert LEFT in kinds(report) and "cp.async.bulk.wait_group.read is missing" in str(report)


def test_a_load_that_nobody_waits_for():
    report = copied(LOADED.replace(WAIT.format(n=0, at=SHARED, parity=0), ""))
    assert LEFT in kinds(report) and "a wait for its mbarrier is missing" in str(report)


def test_what_a_store_wrote_is_there_only_after_its_group():
    """wait_group.read lets the source be written again; what was stored needs wait_group."""
    look = "bar.sync 0; ld.global.b32 %r3, [%out];"
    assert RACE_WR in kinds(stored(STORED + look))
    assert stored(STORED.replace(".read", "") + look).ok


def test_addresses_and_sizes_that_no_copy_can_have():
    plain = "@!%other cp.async.bulk.global.shared::cta.bulk_group [%out+{to}], [s], {size};" + GROUP.format(read="")
    for to, size in ((8, 64), (0, 72)):
        report = stored(BEGIN + FILL.format(words=256) + FENCE + plain.format(to=to, size=size))
        assert kinds(report) == {"bulk copy with a misaligned address or size"}


@pytest.mark.parametrize(
    ("tiled", "words"),
    [
        (bytes(128), "no tensor map is there"),
        (TiledTensor(torch.randn(64), (16,)), "another number of dimensions"),
        (TiledTensor(torch.randn(16, 32), (8, 6)), "a row of its box is no multiple of 16 bytes"),
        (TiledTensor(torch.randn(16, 64), (8, 64), "128B"), "a row of its box is longer than its swizzle's span"),
    ],
)
def test_tensor_maps_that_cannot_be_used(tiled, words):
    report = run(LOADED, tiled, torch.zeros(1), torch.zeros(1))
    assert "tensor map that cannot be used" in kinds(report) and words in str(report)


@pytest.mark.parametrize(("element", "bits", "there"), [(U4, 4, 8), (U4_PADDED, 4, 16), (U6_PADDED, 6, 16)])
@pytest.mark.parametrize("swizzle", [0, 3])
def test_a_load_of_numbers_below_8_bits(element, bits, there, swizzle):
    """16 of them are 8 or 12 bytes of the tensor, and 8 or 16 of shared memory, where padding is not written. The
    mbarrier counts the bytes of the tensor, as CuTe DSL expects them."""
    row, box, part = 128 * bits // 8, 64, 2 * bits
    data = torch.randint(0, 256, (6, row), dtype=torch.uint8, generator=torch.Generator().manual_seed(bits))
    m = TensorMap(0, element, (128, 6), (row,), (box, 4), swizzle=swizzle)
    pitch = 128 if swizzle else box // 16 * there
    out = torch.zeros(4 * pitch, dtype=torch.uint8)
    body = BEGIN + EXPECT.format(at=SHARED, count=4 * box * bits // 8) + load(2, (1, 64))
    body += WAIT.format(n=0, at=SHARED, parity=0) + OUT.format(words=pitch)
    report = run(body, MappedTensor(data, m), data, out, checks=frozenset())
    assert report.ok, str(report)
    groups = data[1:5, row // 2 :].reshape(4, -1, part)
    for r in range(4):
        for g in range(box // 16):
            at = r * pitch + there * g
            at ^= (at >> 7 << 4) & 112 if swizzle else 0
            assert torch.equal(out[at : at + part], groups[r, g])


def test_a_store_from_padded_numbers_is_refused():
    data = torch.zeros(6, 64, dtype=torch.uint8)
    m = TensorMap(0, U4_PADDED, (128, 6), (64,), (64, 4))
    store = "@!%other cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%m, {0, 0}], [s];"
    with pytest.raises(Unimplemented, match="from shared memory with padding is not emulated"):
        run(BEGIN + store, MappedTensor(data, m), data, data)


@pytest.mark.parametrize("element", [F32_FTZ, TF32, TF32_FTZ])
def test_reductions_add_tf32_as_f32_and_flush_where_the_type_says_so(element):
    tiny = 2.0**-130  # subnormal
    given, out = torch.tensor([1.0 + 2.0**-20, tiny, 1.0, tiny]), torch.tensor([0.5, 0.25 + 2.0**-20, tiny, tiny])
    x, memory = given.repeat(8, 4), out.repeat(8, 4)
    m = TensorMap(0, element, (16, 8), (64,), (16, 8))
    add = "@!%other cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%m, {0, 0}], [s];"
    body = BEGIN + FILL.format(words=128) + FENCE + add + GROUP.format(read="")
    assert run(body, MappedTensor(memory, m), x, memory).ok
    right = torch.tensor([1.5 + 2.0**-20, 0.25 + 2.0**-20, 1.0, 0.0 if element != TF32 else 2 * tiny])
    assert torch.equal(memory, right.repeat(8, 4))


def test_a_multicast_of_a_pair_tells_the_mbarrier_of_the_even_cta():
    """.cta_group::2: the CTA that issues it expects the bytes of both destinations."""
    x = torch.arange(256, dtype=torch.int32).reshape(16, 16)
    out = torch.zeros(2, 64, dtype=torch.int32)
    form = "cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    sync = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    body = f"""{BEGIN} fence.mbarrier_init.release.cluster; {sync} .reg .b16 %mask; mov.b16 %mask, 3;
mov.u32 %r3, %cluster_ctarank; mul.wide.u32 %d1, %r3, 256; add.s64 %out, %out, %d1; setp.ne.u32 %odd, %r3, 0;
@%odd bra SYNC; {EXPECT.format(at=SHARED, count=512)}
@!%other {form}.multicast::cluster [s], [%m, {{0, 4}}], [s+{SHARED}], %mask;
{WAIT.format(n=0, at=SHARED, parity=0)} SYNC: {sync} {OUT.format(words=64)} {sync}"""
    module = Emulator(strict=False).load_ptx(kernel(body))
    report = module.launch("k", (2,), (32,), (TiledTensor(x, (4, 16)), x, out), cluster=(2,))
    assert report.ok, str(report)
    assert torch.equal(out, x[4:8].flatten().expand(2, 64))


IM2COL = (
    "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
    "[s], [%m, {1, 1, 1}], [s], {%h0};"
)


@pytest.mark.parametrize(
    "instruction",
    [
        IM2COL, IM2COL.replace(".im2col.", ".im2col::w."), IM2COL.replace(".im2col.", ".im2col::w::128."),
        IM2COL.replace(".global.im2col.", ".global.tile::gather4."),
        "cp.async.bulk.tensor.3d.global.shared::cta.im2col_no_offs.bulk_group [%m, {1, 1, 1}], [s];",
        "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group [%m, {1, 1, 1, 1, 1}], [s];",
    ],
)  # fmt: skip
def test_modes_that_are_not_emulated_are_refused_by_name(instruction):
    with pytest.raises(Unimplemented) as error:
        run(f'\n.file 1 "conv.py"\n.loc 1 12 0\n{instruction}', bytes(128), torch.zeros(1), torch.zeros(1))
    said = str(error.value)
    assert f"instruction {instruction.split()[0]!r} is not emulated: " in said and "(conv.py:12, PTX line" in said


@pytest.mark.parametrize("interleave", [1, 2])
def test_an_interleaved_tensor_map_is_refused_where_a_copy_uses_it(interleave):
    tensor = torch.zeros(4096)
    m = TensorMap(0, F32, (8, 16, 8), (32, 512), (8, 4, 2), interleave=interleave)
    with pytest.raises(Unimplemented, match=r"'cp\.async\.bulk.*' with an interleaved tensor map is not emulated"):
        run(BEGIN + load(3, (0, 0, 0)), MappedTensor(tensor, m), tensor, tensor)


@pytest.mark.parametrize(
    ("tensor", "box", "words"),
    [
        (torch.randn(16, 30), (8, 16), "a stride of 120 bytes; it must be a multiple of 16"),
        (torch.randn(512, 4), (300, 4), "each dimension must have 1 to 256 elements"),
        (torch.randn(0, 32), (8, 32), r"sizes \(32, 0\); each dimension must have 1 to 2\*\*32 elements"),
        (torch.randn(256, 256), (256, 256), "more bytes than a CTA can have of shared memory"),
        (torch.randn(16, 32), (8,), "2 sizes, 1 strides and 1 sizes of a box"),
    ],
)
def test_tensor_maps_that_no_host_can_make(tensor, box, words):
    with pytest.raises(ValueError, match=words):
        run(LOADED, TiledTensor(tensor, box), torch.zeros(1), torch.zeros(1))


def test_a_map_differs_from_cute_dsls_in_bit_1_and_in_words_16_and_18():
    """Words as the host code of CuTe DSL 4.8.1 has them for these tensors, but for the promotion to L2 (bits 17 and 18
    of word 2)."""
    x = torch.zeros(5, 3, 48, 64, dtype=torch.bfloat16)
    data = TiledTensor(x, (3, 2, 8, 64), "128B").encode(0x123456789AB0)
    words = (
        "56789ab0 00001234 00006532 00000008 00000180 00000480 00000000 00000000 0000003f 0000002f 00000002 00000004"
    )
    theirs = [*(int(word, 16) for word in words.split()), 0, 0x3F000000, 0x00020107, *[0] * 17]
    theirs[2] &= ~2
    theirs[16], theirs[18] = 3 * 2 * 8 * 128, 1024
    assert list(struct.unpack("<32I", data)) == theirs


def test_copies_take_maps_as_cute_dsl_writes_them():
    word = struct.unpack("<32I", TILED.encode(0))[2]
    body = LOADED + OUT.format(words=256)
    usual, out = torch.zeros(256), torch.zeros(256)
    assert run(body, TILED, TILED.tensor, usual).ok
    assert run(body, Changed(TILED.tensor, TILED.box, words={2: word | 2, 16: 0, 18: 0}), TILED.tensor, out).ok
    assert torch.equal(usual, out) and torch.equal(usual.view(8, 32), TILED.tensor[:8])


COORDINATE = "illegal coordinate of a bulk copy"


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (
            (0, 3),
            "at coordinate 0 = 3, which is 12 bytes from the start of a row; coordinate 0 must be a multiple of 4",
        ),
        ((0, -1), "at coordinate 0 = -1, which is -4 bytes from the start"),
        ((-20, 33), "at coordinate 0 = 33"),
        ((-3, -8), ""),
    ],
)
def test_a_copy_begins_at_a_multiple_of_16_bytes(at, words):
    loading = EXPECT.format(at=SHARED, count=1024) + load(2, at) + WAIT.format(n=0, at=SHARED, parity=0)
    report = copied(BEGIN + loading)
    assert kinds(report) == ({COORDINATE} if words else set()) and words in str(report)


@pytest.mark.parametrize(("at", "words"), [("-8, 0", "0 = -8"), ("0, -1", "1 = -1"), ("8, 1", ""), ("6, 1", "0 = 6")])
@pytest.mark.parametrize("reduces", [False, True])
def test_a_copy_to_global_memory_has_no_negative_coordinate(at, words, reduces):
    store = STORE.replace("cp.async", "cp.reduce.async").replace("cta.tile", "cta.add.tile") if reduces else STORE
    report = stored(BEGIN + FILL.format(words=256) + FENCE + store.format(at=at) + GROUP.format(read=""))
    assert kinds(report) == ({COORDINATE} if words else set())
    assert f"at coordinate {words}" in str(report) if words else report.ok


@pytest.mark.parametrize(("operation", "dtype"), [("and", torch.int64), ("min", torch.float32)])
def test_reductions_that_do_not_combine_a_type(operation, dtype):
    out = torch.zeros(16, 32, dtype=dtype)
    reduce = STORE.format(at="0, 0").replace("cp.async", "cp.reduce.async").replace("cta.tile", f"cta.{operation}.tile")
    body = BEGIN + FILL.format(words=256) + FENCE + reduce + GROUP.format(read="")
    report = run(body, TiledTensor(out, (4, 32)), torch.randn(256), out)
    assert "a type that the reduction does not combine" in str(report)


def short_rows(rows: int) -> tuple[Report, torch.Tensor, torch.Tensor]:
    """A load of rows of 96 bytes in a swizzle of 128; the last row's first 16 bytes in the tensor, and as they come."""
    x, out = torch.randn(160, 32), torch.zeros(4)
    loading = EXPECT.format(at=SHARED, count=rows * 96) + load(2, (0, 4)) + WAIT.format(n=0, at=SHARED, parity=0)
    at = (rows - 1) * 128 + 16 * ((rows - 1) % 8)
    show = f"ld.shared.v4.b32 {{%r0, %r1, %r2, %r3}}, [s+{at}]; st.global.v4.b32 [%out], {{%r0, %r1, %r2, %r3}};"
    report = run(BEGIN + loading + show, TiledTensor(x, (rows, 24), "128B"), x, out)
    return report, x[rows - 1, 4:8], out


def test_a_short_row_of_a_swizzled_box_takes_the_whole_span():
    report, right, out = short_rows(14)
    assert report.ok and torch.equal(out, right), str(report)


def test_a_box_whose_spans_do_not_fit_is_out_of_bounds_of_shared_memory():
    """129 rows of 96 bytes would fit, their spans do not."""
    report, _, _ = short_rows(129)
    assert "out of bounds of shared memory" in kinds(report) and "takes the swizzle's whole span" in str(report)


def test_a_store_writes_16_bytes_at_a_time_beyond_the_end_of_a_row():
    """Of 30 numbers, in memory with room for 32."""
    whole, x = torch.zeros(12, 32), torch.randn(256)
    body = BEGIN + FILL.format(words=256) + FENCE + STORE.format(at="0, 2") + GROUP.format(read="")
    report = run(body, TiledTensor(whole[:, :30], (8, 32)), x, whole)
    assert report.ok, str(report)
    right = torch.zeros(12, 32)
    right[2:10] = x.view(8, 32)
    assert torch.equal(whole, right)


def test_a_map_that_reaches_past_its_tensor_is_out_of_bounds():
    x = torch.randn(16, 32)
    short = TiledTensor(x[:4], (8, 32))
    longer = TiledTensor(x, (8, 32))
    object.__setattr__(short, "encode", longer.encode)
    report = run(LOADED, short, torch.zeros(1), torch.zeros(1))
    assert "out of bounds" in kinds(report) and "past its end" in str(report)
