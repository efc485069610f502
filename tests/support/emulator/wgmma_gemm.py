"""A small Hopper kernel to try wgmma with: C = A B for one CTA, written in CuTe DSL and compiled without a GPU.

Both operands are copied into shared memory element by element, in the layout that wgmma asks for; so the test is of
wgmma itself: its descriptors, layouts, majors and waiting.
"""

import cuda.bindings.driver as cuda
import torch
from cutlass import BFloat16, Float16, Float32, const_expr, cute
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup
from cutlass.memory import SmemAllocator

TYPES = {torch.bfloat16: BFloat16, torch.float16: Float16}
MAJORS = {"k": OperandMajorMode.K, "mn": OperandMajorMode.MN}
SWIZZLES = ("INTER", "SW32", "SW64", "SW128")


class Gemm:
    """mC (m, n) f32 = mA (m, k) mB (n, k)^T, m = 64 per warpgroup; k a multiple of 16.

    a_major, b_major  "k" or "mn"; a_swizzle, b_swizzle as in SWIZZLES; a_registers: A goes through registers
    """

    def __init__(self, dtype: torch.dtype, m: int, n: int, k: int, *, a_major: str = "k", b_major: str = "k",
                 a_swizzle: str = "SW128", b_swizzle: str = "SW128", a_registers: bool = False, sums: type = Float32,
                 instruction_n: int | None = None) -> None:  # fmt: skip
        self.dtype, self.m, self.n, self.k = TYPES[dtype], m, n, k
        self.a_major, self.b_major, self.a_registers, self.sums = a_major, b_major, a_registers, sums
        self.a_swizzle, self.b_swizzle = a_swizzle, b_swizzle
        self.instruction_n = instruction_n or n

    def layout(self, rows: int, major: str, swizzle: str):
        kind = getattr(warpgroup.SmemLayoutAtomKind, f"{major.upper()}_{swizzle}")
        atom = warpgroup.make_smem_layout_atom(kind, self.dtype)
        return cute.tile_to_shape(atom, (rows, self.k), order=(0, 1) if major == "k" else (1, 0))

    @cute.jit
    def __call__(self, a: cute.Pointer, b: cute.Pointer, c: cute.Pointer, stream: cuda.CUstream):
        m_a = cute.make_tensor(a, cute.make_layout((self.m, self.k), stride=(self.k, 1)))
        m_b = cute.make_tensor(b, cute.make_layout((self.n, self.k), stride=(self.k, 1)))
        m_c = cute.make_tensor(c, cute.make_layout((self.m, self.n), stride=(self.n, 1)))
        source = warpgroup.OperandSource.RMEM if self.a_registers else warpgroup.OperandSource.SMEM
        atom = warpgroup.MmaF16BF16Op(
            self.dtype, self.sums, (64, self.instruction_n, 16), source, MAJORS[self.a_major], MAJORS[self.b_major]
        )
        tiled_mma = cute.make_tiled_mma(cute.make_mma_atom(atom), (self.m // 64, 1, 1))
        s_a_layout = self.layout(self.m, self.a_major, self.a_swizzle)
        s_b_layout = self.layout(self.n, self.b_major, self.b_swizzle)
        self.kernel(m_a, m_b, m_c, tiled_mma, s_a_layout, s_b_layout).launch(
            grid=(1, 1, 1), block=(2 * self.m, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, tiled_mma: cute.TiledMma,
               s_a_layout: cute.ComposedLayout, s_b_layout: cute.ComposedLayout):  # fmt: skip
        thread, _, _ = cute.arch.thread_idx()
        shared = SmemAllocator()
        sA = shared.allocate_tensor(self.dtype, s_a_layout.outer, 1024, s_a_layout.inner)
        sB = shared.allocate_tensor(self.dtype, s_b_layout.outer, 1024, s_b_layout.inner)
        for i in range(thread, self.m * self.k, 2 * self.m):
            sA[i // self.k, i % self.k] = mA[i // self.k, i % self.k]
        for i in range(thread, self.n * self.k, 2 * self.m):
            sB[i // self.k, i % self.k] = mB[i // self.k, i % self.k]
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.barrier()
        mine = tiled_mma.get_slice(thread)
        tCsA, tCsB = mine.partition_A(sA), mine.partition_B(sB)
        tCgC = mine.partition_C(mC)
        rC = cute.make_rmem_tensor(tCgC.shape, self.sums)
        rB = tiled_mma.make_fragment_B(tCsB)
        if const_expr(self.a_registers):
            rA = tiled_mma.make_fragment_A(mine.partition_A(sA).shape)
            cute.autovec_copy(tCsA, rA)
        else:
            rA = tiled_mma.make_fragment_A(tCsA)
        tiled_mma.set(warpgroup.Field.ACCUMULATE, False)
        warpgroup.fence()
        for step in range(self.k // 16, unroll_full=True):
            cute.gemm(tiled_mma, rC, rA[None, None, step], rB[None, None, step], rC)
            tiled_mma.set(warpgroup.Field.ACCUMULATE, True)
        warpgroup.commit_group()
        warpgroup.wait_group(0)
        for i in range(cute.size(rC), unroll_full=True):
            tCgC[i] = Float32(rC[i])
