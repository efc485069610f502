"""A product of a pair of CTAs by tcgen05 (.cta_group::2), written in CuTe DSL and compiled without a GPU.

CuTe makes the descriptors and the layouts. Each CTA copies its rows of A and its half of the rows of B into its shared
memory; the even one issues the products, and tells both when they are done.
"""

import cuda.bindings.driver as cuda
import torch
from cutlass import BFloat16, Float16, Float32, Int32, Int64, cute
from cutlass.cute.nvgpu import tcgen05
from cutlass.memory import SmemAllocator
from tcgen05_gemm import COLUMNS, MAJORS

TYPES = {torch.bfloat16: BFloat16, torch.float16: Float16}


class PairGemm:
    """mC (m, n) = mA (m, k) mB (n, k)^T, m 128 or 256, by two CTAs of 128 threads. clusters: that are launched; those
    after the first would write beyond the matrices."""

    def __init__(
        self, dtype: torch.dtype, m: int, n: int, k: int, a_major: str = "k", b_major: str = "k", clusters: int = 1
    ) -> None:
        self.dtype, self.m, self.n, self.k, self.a_major, self.b_major = TYPES[dtype], m, n, k, a_major, b_major
        self.clusters = clusters

    def layout(self, shape, major: str):
        atom = tcgen05.make_smem_layout_atom(getattr(tcgen05.SmemLayoutAtomKind, f"{major.upper()}_SW64"), self.dtype)
        return tcgen05.tile_to_mma_shape(atom, shape, order=(0, 1) if major == "k" else (1, 0))

    @cute.jit
    def __call__(self, a: cute.Pointer, b: cute.Pointer, c: cute.Pointer, stream: cuda.CUstream):
        m_a = cute.make_tensor(a, cute.make_layout((self.m, self.k), stride=(self.k, 1)))
        m_b = cute.make_tensor(b, cute.make_layout((self.n, self.k), stride=(self.k, 1)))
        m_c = cute.make_tensor(c, cute.make_layout((self.m, self.n), stride=(self.n, 1)))
        operation = tcgen05.MmaF16BF16Op(
            self.dtype, Float32, (self.m, self.n, 16), tcgen05.CtaGroup.TWO, tcgen05.OperandSource.SMEM,
            MAJORS[self.a_major], MAJORS[self.b_major],
        )  # fmt: skip
        tiled_mma = cute.make_tiled_mma(operation)
        s_a_layout = self.layout(tiled_mma.partition_shape_A((self.m, self.k)), self.a_major)
        s_b_layout = self.layout(tiled_mma.partition_shape_B((self.n, self.k)), self.b_major)
        self.kernel(m_a, m_b, m_c, tiled_mma, s_a_layout, s_b_layout).launch(
            grid=(2 * self.clusters, 1, 1), block=(128, 1, 1), cluster=(2, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, tiled_mma: cute.TiledMma,
               s_a_layout: cute.ComposedLayout, s_b_layout: cute.ComposedLayout):  # fmt: skip
        thread, _, _ = cute.arch.thread_idx()
        rank, _, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        shared = SmemAllocator()
        sA = shared.allocate_tensor(self.dtype, s_a_layout.outer, 1024, s_a_layout.inner)
        sB = shared.allocate_tensor(self.dtype, s_b_layout.outer, 1024, s_b_layout.inner)
        done = shared.allocate_array(Int64)
        held = shared.allocate_array(Int32)
        rows, columns = self.m // 2, self.n // 2
        for i in range(thread, rows * self.k, 128):
            sA[(i // self.k, i % self.k % 16), 0, i % self.k // 16] = mA[rank * rows + i // self.k, i % self.k]
        for i in range(thread, columns * self.k, 128):
            sB[(i // self.k, i % self.k % 16), 0, i % self.k // 16] = mB[rank * columns + i // self.k, i % self.k]
        if warp == 0:
            cute.arch.alloc_tmem(COLUMNS, held, is_two_cta=True)
            cute.arch.relinquish_tmem_alloc_permit(is_two_cta=True)
        if thread == 0:
            cute.arch.mbarrier_init(done, 1)
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        pointer = cute.arch.retrieve_tmem_ptr(Float32, 16, held)
        tC = tiled_mma.make_fragment_C(tiled_mma.partition_shape_C((self.m, self.n)))
        tC = cute.make_tensor(pointer, tC.layout)
        rA, rB = tiled_mma.make_fragment_A(sA), tiled_mma.make_fragment_B(sB)
        if rank == 0 and warp == 0:
            tiled_mma.set(tcgen05.Field.ACCUMULATE, False)
            for i in range(self.k // 16, unroll_full=True):
                cute.gemm(tiled_mma, tC, rA[None, None, i], rB[None, None, i], tC)
                tiled_mma.set(tcgen05.Field.ACCUMULATE, True)
            with cute.arch.elect_one():
                tcgen05.commit(done, 3, tcgen05.CtaGroup.TWO)
        cute.arch.mbarrier_wait(done, 0)
        atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(8)), Float32)
        copy = tcgen05.make_tmem_copy(atom, tC[(None, None), 0, 0])
        mine = copy.get_slice(thread)
        gC = tiled_mma.get_slice(rank).partition_C(mC)
        source, target = mine.partition_S(tC[(None, None), 0, 0]), mine.partition_D(gC[(None, None), 0, 0])
        rC = cute.make_rmem_tensor(target.shape, Float32)
        cute.copy(copy, source, rC)
        cute.arch.fence_view_async_tmem_load()
        for i in range(cute.size(rC), unroll_full=True):
            target[i] = rC[i]
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        if warp == 0:
            cute.arch.dealloc_tmem(pointer, COLUMNS, is_two_cta=True)
