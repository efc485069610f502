"""Products of tcgen05.mma with narrow numbers and block scales in plain PTX: D (m x n) = (A sA) (B sB)^T.

One CTA (m = 128), or a pair (m = 256, or 128 with A in tensor memory). The test lays out each CTA's shared memory
(`image`), which 128 threads copy from global memory: A at 0 and B at 4096, K-major without swizzle; scale factors of A
at 6144 and of B at 6656, 32 rows of 16 bytes; an mbarrier at 8192, the address of the columns at 8200. In tensor
memory: D from column 0, A's scale factors at 64, B's at 68, A (where it is there) at 72.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from ptx_tools import Emulator, kernel
from tcgen05_ptx import descriptor

SHARED = 8208
IMAGE = 8192
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
CODES = {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5}


def values(form: str, codes: torch.Tensor) -> torch.Tensor:
    """float64: what the patterns of a format mean, by its definition (OCP Microscaling Formats)."""
    if form in ("e4m3", "e5m2"):
        kind = torch.float8_e4m3fn if form == "e4m3" else torch.float8_e5m2
        return codes.to(torch.uint8).view(kind).double()
    if form == "e2m1":
        return torch.cat([E2M1, -E2M1]).double()[codes]
    exponent, mantissa, bias = (2, 3, 1) if form == "e2m3" else (3, 2, 3)
    power, fraction = codes >> mantissa & (1 << exponent) - 1, (codes & (1 << mantissa) - 1) / (1 << mantissa)
    size = torch.where(power == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * torch.exp2(power - bias))
    return torch.where(codes >> 5 == 1, -size, size).double()


def draw(form: str, rows: int, k: int, generator: torch.Generator) -> torch.Tensor:
    """Patterns whose numbers are small enough for exact sums."""
    if form in ("e4m3", "e5m2"):
        numbers = torch.randint(-6, 7, (rows, k), generator=generator) * 0.5
        kind = torch.float8_e4m3fn if form == "e4m3" else torch.float8_e5m2
        return numbers.to(kind).view(torch.uint8).long()
    return torch.randint(0, 16 if form == "e2m1" else 64, (rows, k), generator=generator)


def packed_bits(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """uint8 (rows, k / 16, 16): each 16 numbers one after the other from the lowest bit on, then padding of ones."""
    rows, k = codes.shape
    stream = (codes.reshape(rows, k // 16, 16, 1) >> torch.arange(bits) & 1).reshape(rows, k // 16, -1, 8)
    data = (stream << torch.arange(8)).sum(-1).to(torch.uint8)
    return torch.cat([data, torch.full((rows, k // 16, 16 - data.shape[-1]), 255, dtype=torch.uint8)], -1)


@dataclass(frozen=True)
class Product:
    """One form of the instruction. kind: 'f8f6f4' (no scales), 'mxf8f6f4', 'mxf4' or 'mxf4nvf4'; factors of a row of A;
    a, b: their types; scale: 'ue8m0' or 'ue4m3'; byte: the first factor's place in a word; n: columns of D."""

    kind: str
    a: str = "e2m1"
    b: str = "e2m1"
    factors: int = 0
    qualifier: str = ""
    scale: str = "ue8m0"
    byte: int = 0
    n: int = 64
    pair: bool = False
    half: bool = False  # m = 128 of a pair
    a_in_tensor_memory: bool = False
    copies_a: str = "tcgen05.cp.cta_group::1.128x256b"

    @property
    def k(self) -> int:
        return 64 if self.kind.startswith("mxf4") else 32

    @property
    def m(self) -> int:
        return 256 if self.pair and not self.half else 128

    @property
    def rows(self) -> int:
        """Rows of A that a CTA has."""
        return self.m // 2 if self.pair else self.m

    @property
    def instruction(self) -> int:
        """The instruction descriptor."""
        word = self.n >> 3 << 17 | self.m >> 4 << 24
        if self.k == 64:
            return word | 1 << 7 | 1 << 10 | self.byte << 4 | self.byte << 29 | (self.scale == "ue8m0") << 23
        word |= CODES[self.a] << 7 | CODES[self.b] << 10
        return word | self.byte << 4 | self.byte << 29 | 1 << 23 if self.factors else word | 1 << 4

    def matrix(self, codes: torch.Tensor, form: str) -> torch.Tensor:
        """uint8: a K-major matrix in shared memory, its two chunks of K one after the other."""
        rows = codes.shape[0]
        if self.k == 64:
            chunks = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8).reshape(rows, 2, 16)
        elif form in ("e4m3", "e5m2"):
            chunks = codes.to(torch.uint8).reshape(rows, 2, 16)
        else:
            chunks = packed_bits(codes, 4 if form == "e2m1" else 6)
        return chunks.transpose(0, 1).reshape(-1)

    def factor_rows(self, codes: torch.Tensor) -> torch.Tensor:
        """uint8 (512): factors (rows, factors) as tcgen05.cp wants them; what no factor is in is a NaN."""
        rows = torch.full((32, 4, 4), 255, dtype=torch.uint8)
        for row in range(codes.shape[0]):
            rows[row % 32, row // 32, self.byte : self.byte + self.factors] = codes[row].to(torch.uint8)
        return rows.reshape(-1)

    def operands(self, seed: int = 3):
        """(images of the CTAs, the exact D)."""
        g = torch.Generator().manual_seed(seed)
        a, b = draw(self.a, self.m, self.k, g), draw(self.b, self.n, self.k, g)
        x, y = values(self.a, a), values(self.b, b)
        images = torch.zeros(2 if self.pair else 1, IMAGE, dtype=torch.uint8)
        if self.factors:
            low, high = (126, 129) if self.scale == "ue8m0" else (0x30, 0x40)
            sa, sb = (torch.randint(low, high, (rows, self.factors), generator=g) for rows in (self.m, self.n))
            mean = (lambda s: torch.exp2(s - 127.0)) if self.scale == "ue8m0" else (lambda s: values("e4m3", s))
            x, y = (v * mean(s).double().repeat_interleave(self.k // self.factors, 1) for v, s in ((x, sa), (y, sb)))
        for cta, image in enumerate(images):
            half = self.n // len(images)
            own = slice(self.rows * cta, self.rows * cta + self.rows)
            image[: 32 * self.rows] = self.matrix(a[own], self.a)
            part = self.matrix(b[half * cta : half * cta + half], self.b)
            image[4096 : 4096 + len(part)] = part
            if self.factors:
                image[6144:6656] = self.factor_rows(sa[own])
                image[6656:7168] = self.factor_rows(sb)
        return images, x @ y.T

    def text(self) -> str:
        """The kernel: parameters image, D."""
        group = f"cta_group::{2 if self.pair else 1}"
        half = self.n // (2 if self.pair else 1)
        b = descriptor(4096, 16 * half, 128)
        scales = "".join(
            f"add.s64 %d9, %d5, {descriptor(at, 16, 128)}; add.u32 %r16, %r10, {column};"
            f"@%q2 tcgen05.cp.{group}.32x128b.warpx4 [%r16], %d9;"
            for at, column in ((6144, 64), (6656, 68))
        )
        copy_a = "add.u32 %r17, %r10, 72;" if self.a_in_tensor_memory else ""
        for chunk in range((1 + self.half) * self.a_in_tensor_memory):
            copy_a += f"""add.u32 %r18, %r17, {4 * chunk}; add.s64 %d8, %d6, {self.rows * chunk};
@%q2 {self.copies_a} [%r18], %d8;"""
        wide = self.n // 2 if self.half else self.n  # columns that a thread has of D
        first = "[%r17]" if self.a_in_tensor_memory else "%d6"
        if self.factors:
            kind = f"kind::{self.kind}.block_scale{self.qualifier and '.'}{self.qualifier}"
            mma = f"""add.u32 %r14, %r10, 64; add.u32 %r15, %r10, 68;
@%q2 tcgen05.mma.{group}.{kind} [%r10], {first}, %d7, %r13, [%r14], [%r15], %q4;"""
        else:
            mma = f"@%q2 tcgen05.mma.{group}.kind::{self.kind} [%r10], {first}, %d7, %r13, %q4;"
        told = ".multicast::cluster.b64 [s+8192], %h0" if self.pair else ".b64 [s+8192]"
        sync = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" if self.pair else "bar.sync 0;"
        names = "{" + ", ".join(f"%v{i}" for i in range(wide)) + "}"
        copies = "".join(
            f"ld.global.v4.b32 {{%r2, %r3, %r4, %r5}}, [%d1+{2048 * i}];"
            f"st.shared.v4.b32 [%r1+{2048 * i}], {{%r2, %r3, %r4, %r5}};" for i in range(4)
        )  # fmt: skip
        out = "".join(f"st.global.b32 [%d0+{4 * i}], %v{i};" for i in range(wide))
        return f"""{{ .reg .b32 %v<{self.n}>; setp.eq.u32 %q0, %t, 0; setp.lt.u32 %q1, %t, 32;
mov.u32 %r30, %cluster_ctarank; setp.eq.u32 %q2, %r30, 0; and.pred %q2, %q2, %q0; mov.b16 %h0, 3;
mul.wide.u32 %d0, %r30, {IMAGE}; add.s64 %d1, %p0, %d0; mul.wide.u32 %d0, %t, 16; add.s64 %d1, %d1, %d0;
mov.u32 %r0, s; mad.lo.u32 %r1, %t, 16, %r0; {copies}
@%q1 tcgen05.alloc.{group}.sync.aligned.shared::cta.b32 [s+8200], 128;
@%q1 tcgen05.relinquish_alloc_permit.{group}.sync.aligned;
@%q0 mbarrier.init.shared::cta.b64 [s+8192], 1; fence.mbarrier_init.release.cluster;
fence.proxy.async; bar.sync 0; {sync}
ld.shared.b32 %r10, [s+8200]; and.b32 %r11, %t, 96; shl.b32 %r11, %r11, 16; add.u32 %r11, %r10, %r11;
and.b32 %r12, %r0, 0xFFFF; shr.u32 %r12, %r12, 4; cvt.u64.u32 %d5, %r12;
add.s64 %d6, %d5, {descriptor(0, 16 * self.rows, 128)}; add.s64 %d7, %d5, {b}; mov.b32 %r13, {self.instruction:#x};
setp.ne.u32 %q4, 0, 0; {scales if self.factors else ""} {copy_a} {mma}
@%q2 tcgen05.commit.{group}.mbarrier::arrive::one.shared::cluster{told};
WAIT: mbarrier.try_wait.parity.shared::cta.b64 %q5, [s+8192], 0; @!%q5 bra WAIT; tcgen05.fence::after_thread_sync;
tcgen05.ld.sync.aligned.32x32b.x{wide}.b32 {names}, [%r11]; tcgen05.wait::ld.sync.aligned;
and.b32 %r6, %t, {self.rows - 1}; shr.u32 %r7, %t, {self.rows.bit_length() - 1}; mad.lo.u32 %r1, %r30, {self.rows}, %r6;
mul.lo.u32 %r1, %r1, {4 * self.n}; mad.lo.u32 %r1, %r7, {4 * wide}, %r1; cvt.u64.u32 %d0, %r1; add.s64 %d0, %p1, %d0;
{out}
{sync} bar.sync 1; @%q1 tcgen05.dealloc.{group}.sync.aligned.b32 %r10, 128; }}"""

    def run(self, change=lambda text: text, images=None, **options):
        """(report, D, the exact D). change: of the kernel's text."""
        own, expected = self.operands()
        out = torch.full((self.m, self.n), float("nan"))
        module = Emulator(**{"strict": False, **options}).load_ptx(kernel(change(self.text()), 2, SHARED))
        ctas = 2 if self.pair else 1
        report = module.launch(
            None, (ctas,), (128,), [own if images is None else images, out], cluster=(2,) if self.pair else None
        )
        return report, out, expected
