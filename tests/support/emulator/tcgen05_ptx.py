"""A product by tcgen05.mma in plain PTX, in named pieces that tests leave out, change or double.

128 threads compute D (128 x 16, f32) = A (128 x 16) B^T (16 x 16), both bf16, K-major, without swizzle. Thread t copies
row t; a chunk is 16 bytes of a row. In shared memory: A at 0 (its two chunks 2048 bytes apart, 8 rows in 128 bytes), B
at 4096 (256 apart), an mbarrier at 4608, the address of the columns at 4616.
"""

from __future__ import annotations

import torch
from ptx_tools import Emulator, kernel

SHARED = 4624
A, B = 0, 4096
ROWS, COLUMNS, K = 128, 16, 16
INSTRUCTION = 1 << 4 | 1 << 7 | 1 << 10 | COLUMNS >> 3 << 17 | ROWS >> 4 << 24


def descriptor(at: int, leading: int, stride: int, swizzle: int = 0) -> int:
    """A shared memory descriptor of PTX, from offsets in bytes."""
    return at >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | 1 << 46 | swizzle << 61


def registers(count: int, first: int = 20) -> str:
    return "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"


COPY = """mul.wide.u32 %d0, %t, 32; add.s64 %d1, %p0, %d0; add.s64 %d2, %p1, %d0;
mov.u32 %r0, s; mad.lo.u32 %r1, %t, 16, %r0; setp.lt.u32 %q3, %t, 16;
ld.global.v4.b32 {%r2, %r3, %r4, %r5}, [%d1]; st.shared.v4.b32 [%r1], {%r2, %r3, %r4, %r5};
ld.global.v4.b32 {%r2, %r3, %r4, %r5}, [%d1+16]; st.shared.v4.b32 [%r1+2048], {%r2, %r3, %r4, %r5};
@%q3 ld.global.v4.b32 {%r2, %r3, %r4, %r5}, [%d2]; @%q3 st.shared.v4.b32 [%r1+4096], {%r2, %r3, %r4, %r5};
@%q3 ld.global.v4.b32 {%r2, %r3, %r4, %r5}, [%d2+16]; @%q3 st.shared.v4.b32 [%r1+4352], {%r2, %r3, %r4, %r5};"""
FIRST = "setp.eq.u32 %q0, %t, 0; setp.lt.u32 %q1, %t, 32;"  # %q0: the first thread, %q1: the first warp
ALLOC = "@%q1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [s+4616], 32;"
RELINQUISH = "@%q1 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"
INIT = "@%q0 mbarrier.init.shared::cta.b64 [s+4608], 1;"
PROXY = "fence.proxy.async.shared::cta;"
BARRIER = "bar.sync 0;"
ADDRESS = """ld.shared.b32 %r10, [s+4616]; and.b32 %r11, %t, 96; shl.b32 %r11, %r11, 16; add.u32 %r11, %r10, %r11;
shr.u32 %r12, %r0, 4; cvt.u64.u32 %d5, %r12;"""  # %r10: D, %r11: D from the warp's own lanes on
DESCRIPTORS = f"""add.s64 %d6, %d5, {descriptor(A, 2048, 128)}; add.s64 %d7, %d5, {descriptor(B, 256, 128)};
mov.b32 %r13, {INSTRUCTION};"""
NEW = "setp.ne.u32 %q4, 0, 0;"  # enable-input-d
MMA = "@%q0 tcgen05.mma.cta_group::1.kind::f16 [%r10], %d6, %d7, %r13, %q4;"
COMMIT = "@%q0 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [s+4608];"
WAIT = "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %q5, [s+4608], 0; @!%q5 bra WAIT;"
AFTER = "tcgen05.fence::after_thread_sync;"
LOAD = f"tcgen05.ld.sync.aligned.32x32b.x16.b32 {registers(16)}, [%r11];"
LOADED = "tcgen05.wait::ld.sync.aligned;"
OUT = "mul.wide.u32 %d0, %t, 64; add.s64 %d0, %p2, %d0;" + "".join(
    f"st.global.b32 [%d0+{4 * i}], %r{20 + i};" for i in range(16)
)
FREE = "@%q1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r10, 32;"
PIECES = (COPY, FIRST, ALLOC, RELINQUISH, INIT, PROXY, BARRIER, ADDRESS, DESCRIPTORS, NEW, MMA, COMMIT, WAIT, AFTER,
          LOAD, LOADED, OUT, "bar.sync 1;", FREE)  # fmt: skip
BODY = "\n".join(PIECES)
# two warps that only use tensor memory: columns for both, freed at the end
SMALL = f"""{FIRST} mov.u32 %r0, s; {ALLOC} {RELINQUISH} {BARRIER}
ld.shared.b32 %r10, [s+4616]; and.b32 %r11, %t, 96; shl.b32 %r11, %r11, 16; add.u32 %r11, %r10, %r11;
BODY
{BARRIER} {FREE}"""


def operands(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """A and B of small whole numbers, so that sums are exact."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(-4, 5, (rows, K), generator=generator).bfloat16() for rows in (ROWS, COLUMNS))  # type: ignore[return-value]


def changed(text: str, *changes: tuple[str, str]) -> str:
    """The text with pieces replaced: each (old, new), old being there once."""
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def run(
    *changes: tuple[str, str], numbers: tuple[torch.Tensor, torch.Tensor] | None = None, shared: int = SHARED, **options
):
    """(report, D) of the product with some pieces replaced. numbers: A and B, 32 bytes a row."""
    a, b = numbers or operands()
    out = torch.full((ROWS, COLUMNS), float("nan"))
    module = Emulator(**{"strict": False, **options}).load_ptx(kernel(changed(BODY, *changes), 3, shared))
    report = module.launch(None, (1,), (128,), [a.view(torch.int16), b.view(torch.int16), out])
    return report, out


def run_small(body: str, *tensors: torch.Tensor, block: int = 128, grid: int = 1, shared: int = 8192, **options):
    """The report of a kernel that allocates 32 columns (%r10; %r11 from the warp's own lanes on), runs `body` and frees
    them. A tensor is at least one word."""
    given = tensors or (torch.zeros(1, dtype=torch.int32),)
    text = kernel(SMALL.replace("BODY", body), len(given), shared)
    return Emulator(**{"strict": False, **options}).load_ptx(text).launch(None, (grid,), (block,), given)
