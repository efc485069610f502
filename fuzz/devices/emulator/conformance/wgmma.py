"""Micro-kernels of Hopper's warpgroup MMA (wgmma): one small kernel per shape, type, layout and option.

Each copies its words into shared memory as they are, runs one wgmma on them by descriptor, and stores the accumulators.
The matrices are whatever the descriptors make of those words: small numbers whose sums are exact in any order, so that
a single element read from a wrong place shows; and for each type random and special ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fuzz.devices.emulator.conformance.kernel import MicroKernel, entry

WARPGROUP = 128
NONE, SWIZZLE_128, SWIZZLE_64, SWIZZLE_32 = range(4)  # bits 62 and 63 of a descriptor
PITCH = {NONE: 16, SWIZZLE_128: 128, SWIZZLE_64: 64, SWIZZLE_32: 32}  # bytes of a row of the swizzle's pattern


@dataclass(frozen=True)
class Matrix:
    """An operand in shared memory, as its descriptor says: swizzle mode, is M or N the contiguous dimension, byte
    offsets, and what is added to the start address and written into the field of the base offset."""

    swizzle: int = SWIZZLE_128
    transposed: bool = False
    start: int = 0
    leading: int | None = None
    stride: int | None = None
    base: int = 0

    def offsets(self, rows: int) -> tuple[int, int]:
        """(leading, stride) in bytes: as given, or those of the matrix packed as densely as its layout allows."""
        if not self.transposed:  # 8 rows of K: groups of 8 rows follow one another
            usual = (8 * rows * 2, 128) if self.swizzle == NONE else (16, 8 * PITCH[self.swizzle])
        elif self.swizzle == NONE:  # 8 x 8 blocks, those of one column of blocks first
            usual = (8 * rows * 2, 128)
        else:  # columns of blocks as wide as the pattern, both halves of K of each
            usual = (16 * PITCH[self.swizzle], 8 * PITCH[self.swizzle])
        return tuple(x if given is None else given for x, given in zip(usual, (self.leading, self.stride), strict=True))  # type: ignore[return-value]

    def size(self, rows: int) -> int:
        """Bytes that hold it, with what lies before it in its pattern; a multiple of 2048."""
        leading, stride = self.offsets(rows)
        if self.swizzle == NONE:
            end = rows // 8 * stride + 2 * leading
        elif self.transposed:
            end = -(-2 * rows // PITCH[self.swizzle]) * leading + 2 * stride
        else:
            end = rows // 8 * stride
        return -(-(self.start + end) // 2048) * 2048

    def descriptor(self, rows: int) -> int:
        """All fields but the start address."""
        leading, stride = self.offsets(rows)
        return (leading >> 4) << 16 | (stride >> 4) << 32 | self.base << 49 | self.swizzle << 62


@dataclass(frozen=True)
class Wgmma:
    """One wgmma.m64nNk16. a: a Matrix, or None for registers. accumulates: scale-d; negates: imm-scale-a, -b; data:
    'small' integers, 'random' numbers, 'wide' ones over many powers of two, 'special' ones (NaN, infinities, tiny)."""

    n: int
    kind: str = "bf16"
    sums: str = "f32"
    a: Matrix | None = Matrix()
    b: Matrix = Matrix()
    accumulates: bool = True
    negates: tuple[bool, bool] = (False, False)
    data: str = "small"

    @property
    def exact(self) -> bool:
        return self.data == "small"

    @property
    def name(self) -> str:
        return f"wgmma.mma_async.sync.aligned.m64n{self.n}k16.{self.sums}.{self.kind}.{self.kind}"


def kernel(form: str, p: Wgmma) -> MicroKernel:
    """A warpgroup's inputs are, per thread: its share of the image of shared memory, A's registers, C's registers."""
    a_bytes = p.a.size(64) if p.a else 0
    image = (a_bytes + p.b.size(p.n)) // WARPGROUP // 4
    n_a, n_d = 0 if p.a else 4, p.n // 2 if p.sums == "f32" else p.n // 4
    columns = image + n_a + n_d
    d = [f"%r{i}" for i in range(n_d)]
    a = [f"%r{n_d + i}" for i in range(n_a)]
    lines = [f"mul.wide.u32 %at, %index, {4 * columns}; add.s64 %a, %in0, %at;"]
    lines += [f"mul.wide.u32 %at, %index, {4 * n_d}; add.s64 %o, %out, %at; mov.b32 %sa, s;"]
    lines += [f"mad.lo.s32 %sp, %thread, {4 * image}, %sa;"]
    lines += [f"ld.global.b32 %x, [%a+{4 * i}]; st.shared.b32 [%sp+{4 * i}], %x;" for i in range(image)]
    lines += [f"ld.global.b32 {x}, [%a+{4 * (image + i)}];" for i, x in enumerate(a + d)]
    lines += ["fence.proxy.async; bar.sync 0;"]
    operands = []
    for name, matrix, at, rows in (("%da", p.a, 0, 64), ("%db", p.b, a_bytes, p.n)):
        if matrix:
            lines += [f"add.s32 %x, %sa, {at + matrix.start}; shr.u32 %x, %x, 4; cvt.u64.u32 {name}, %x;"]
            lines += [f"or.b64 {name}, {name}, {matrix.descriptor(rows):#x};"]
            operands.append(name)
        else:
            operands.append("{" + ", ".join(a) + "}")
    signs = ["-1" if negated else "1" for negated in p.negates]
    majors = [str(int(m.transposed)) for m in (p.a, p.b) if m]
    lines += [f"mov.b32 %x, {int(p.accumulates)}; setp.ne.b32 %q, %x, 0; wgmma.fence.sync.aligned;"]
    lines += [f"{p.name} {{{', '.join(d)}}}, {', '.join([*operands, '%q', *signs, *majors])};"]
    lines += ["wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"]
    lines += [f"st.global.b32 [%o+{4 * i}], {x};" for i, x in enumerate(d)]
    registers = f".reg .b64 %a, %o, %da, %db; .reg .b32 %sp, %x, %r<{n_d + n_a}>; .reg .pred %q;"
    text = entry("\n".join(lines), 1, registers, "sm_90a", "8.0", image * 4 * WARPGROUP, 1024)
    return MicroKernel(form, text, (_inputs(p, image + n_a, n_d),), WARPGROUP, n_d, p.exact)


def _halves(x: np.ndarray, kind: str) -> np.ndarray:
    """Numbers (rows, 2 c) as words (rows, c) of two bf16 or f16."""
    x = x.astype(np.float32)
    half = (x.view(np.uint32) >> 16).astype(np.uint16) if kind == "bf16" else x.astype(np.float16).view(np.uint16)
    pairs = half.reshape(len(x), -1, 2).astype(np.uint32)
    return pairs[:, :, 0] | pairs[:, :, 1] << 16


def _inputs(p: Wgmma, n_ab: int, n_d: int) -> np.ndarray:
    """uint32 (128, n_ab + n_d): words of A and B, then of C."""
    rng = np.random.default_rng([p.n, len(p.kind), len(p.data)])
    if p.data == "small":
        ab = rng.integers(-7, 8, (WARPGROUP, 2 * n_ab)).astype(np.float64)
        c = rng.integers(-9, 10, (WARPGROUP, 2 * n_d)).astype(np.float64)
    else:
        ab = rng.standard_normal((WARPGROUP, 2 * n_ab))
        c = rng.standard_normal((WARPGROUP, 2 * n_d))
        if p.data == "wide":
            ab *= np.exp2(rng.integers(-6, 7, ab.shape))
            c *= np.exp2(rng.integers(-8, 9, c.shape))
        elif p.data == "special":
            for x, share in ((ab, 0.02), (c, 0.2)):
                rare = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 65504.0, 6e-8, -6e-8, 1e-6, 1e-5])
                x[:] = np.where(rng.random(x.shape) < share, rng.choice(rare, x.shape), x)
    if p.sums == "f32":
        last = c[:, :n_d].astype(np.float32).view(np.uint32)
    else:
        last = _halves(c, "f16")
    return np.ascontiguousarray(np.concatenate([_halves(ab, p.kind), last], 1))


def cases() -> Iterator[tuple[str, Wgmma]]:
    """(a mark for its name, the wgmma)."""
    for n in range(8, 257, 8):
        yield "", Wgmma(n)
    types = (("bf16", "f32"), ("f16", "f32"), ("f16", "f16"))
    for kind, sums in types:
        p = Wgmma(64, kind, sums)
        yield "registers", replace(p, a=None)
        yield "n 256", replace(p, n=256, a=None)
        yield "no C", replace(p, accumulates=False)
        for negates in ((True, False), (False, True), (True, True)):
            yield f"negates {negates}", replace(p, negates=negates)
            yield f"registers negates {negates}", replace(p, negates=negates, a=None)
        for data in ("random", "wide", "special"):
            yield data, replace(p, data=data)
        yield "registers random", replace(p, data="random", a=None)
        yield "no C random", replace(p, data="random", accumulates=False)
    p = Wgmma(64)
    for swizzle in range(4):
        for transposed in (False, True):
            m = Matrix(swizzle, transposed)
            for n in (8, 24, 64, 128):
                yield f"{m.swizzle} {'mn' if transposed else 'k'}", Wgmma(n, a=m, b=m)
            yield f"A {m.swizzle} {'mn' if transposed else 'k'}", replace(p, a=m)
            yield f"B {m.swizzle} {'mn' if transposed else 'k'}", replace(p, a=None, b=m)
            for start in (32, 64, 1024):  # the next steps of K in a row of the pattern; another pattern
                moved = replace(m, start=start)
                yield f"start {start} {m.swizzle} {'mn' if transposed else 'k'}", replace(p, a=moved, b=moved)
            wide = replace(m, leading=2048, stride=256)  # fields that the layout does not use must not matter
            yield f"offsets {m.swizzle} {'mn' if transposed else 'k'}", Wgmma(16, a=wide, b=wide)
    for swizzle in (SWIZZLE_128, SWIZZLE_64, SWIZZLE_32):
        for start in (128, 256, 384):  # a pattern that does not begin where the swizzle's period does
            for base in (0, start >> 7):
                m = Matrix(swizzle, start=start, base=base)
                yield f"pattern {swizzle} at {start} base {base}", Wgmma(16, a=m, b=m)


def wgmma_kernels() -> Iterator[MicroKernel]:
    """The whole set, in a fixed order."""
    for mark, p in cases():
        yield kernel(f"{p.name} {mark}".strip(), p)
