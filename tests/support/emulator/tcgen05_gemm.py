"""A small Blackwell kernel to try tcgen05 with: C = A B for one CTA, written in CuTe DSL and compiled without a GPU.

CuTe makes the descriptors, the layouts in shared memory and in tensor memory and the way from tensor memory to
registers; both operands are copied into shared memory element by element.
"""

import cuda.bindings.driver as cuda
import torch
from cutlass import BFloat16, Float8E4M3FN, Float8E5M2, Float16, Float32, Int8, Int32, Int64, TFloat32, Uint8, cute
from cutlass.cute.nvgpu import OperandMajorMode, tcgen05
from cutlass.memory import SmemAllocator

TYPES = {torch.bfloat16: BFloat16, torch.float16: Float16, torch.float32: TFloat32, torch.float8_e4m3fn: Float8E4M3FN,
         torch.float8_e5m2: Float8E5M2, torch.int8: Int8, torch.uint8: Uint8}  # fmt: skip
MAJORS = {"k": OperandMajorMode.K, "mn": OperandMajorMode.MN}
LOADS = {"32x32b": (tcgen05.Ld32x32bOp, 1), "16x64b": (tcgen05.Ld16x64bOp, 2), "16x128b": (tcgen05.Ld16x128bOp, 4),
         "16x256b": (tcgen05.Ld16x256bOp, 8), "16x32bx2": (tcgen05.Ld16x32bx2Op, 2)}  # fmt: skip
COLUMNS = 256


class Gemm:
    """mC (m, n) = mA (m, k) mB (n, k)^T, m 64 or 128, by 128 threads.

    dtype     of A and B; sums: of D and C
    a_major, b_major  "k" or "mn"; a_swizzle, b_swizzle: "INTER", "SW32", "SW64", "SW128", "SW128_32B"
    load      shape of tcgen05.ld: a name of LOADS; repeat: its .xN
    """

    def __init__(self, dtype: torch.dtype, m: int, n: int, k: int, *, a_major: str = "k", b_major: str = "k",
                 a_swizzle: str = "SW128", b_swizzle: str = "SW128", sums: type = Float32,
                 load: str = "32x32b", repeat: int = 8) -> None:  # fmt: skip
        self.dtype, self.m, self.n, self.k = TYPES[dtype], m, n, k
        self.a_major, self.b_major, self.a_swizzle, self.b_swizzle = a_major, b_major, a_swizzle, b_swizzle
        self.sums, self.load, self.repeat = sums, load, repeat

    def operation(self):
        """The MMA operation of the type, one CTA."""
        majors = MAJORS[self.a_major], MAJORS[self.b_major]
        group, source = tcgen05.CtaGroup.ONE, tcgen05.OperandSource.SMEM
        if self.dtype in (Float16, BFloat16):
            return tcgen05.MmaF16BF16Op(self.dtype, self.sums, (self.m, self.n, 16), group, source, *majors)
        if self.dtype is TFloat32:
            return tcgen05.MmaTF32Op((self.m, self.n, 8), group, source, *majors)
        if self.dtype in (Int8, Uint8):
            return tcgen05.MmaI8Op(self.dtype, (self.m, self.n, 32), group, source, *majors)
        return tcgen05.MmaF8F6F4Op(self.dtype, self.dtype, self.sums, (self.m, self.n, 32), group, source, *majors)

    def layout(self, shape, major: str, swizzle: str):
        kind = getattr(tcgen05.SmemLayoutAtomKind, f"{major.upper()}_{swizzle}")
        atom = tcgen05.make_smem_layout_atom(kind, self.dtype)
        return tcgen05.tile_to_mma_shape(atom, shape, order=(0, 1) if major == "k" else (1, 0))

    @cute.jit
    def __call__(self, a: cute.Pointer, b: cute.Pointer, c: cute.Pointer, stream: cuda.CUstream):
        m_a = cute.make_tensor(a, cute.make_layout((self.m, self.k), stride=(self.k, 1)))
        m_b = cute.make_tensor(b, cute.make_layout((self.n, self.k), stride=(self.k, 1)))
        m_c = cute.make_tensor(c, cute.make_layout((self.m, self.n), stride=(self.n, 1)))
        tiled_mma = cute.make_tiled_mma(self.operation())
        s_a_layout = self.layout(tiled_mma.partition_shape_A((self.m, self.k)), self.a_major, self.a_swizzle)
        s_b_layout = self.layout(tiled_mma.partition_shape_B((self.n, self.k)), self.b_major, self.b_swizzle)
        self.kernel(m_a, m_b, m_c, tiled_mma, s_a_layout, s_b_layout).launch(
            grid=(1, 1, 1), block=(128, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, tiled_mma: cute.TiledMma,
               s_a_layout: cute.ComposedLayout, s_b_layout: cute.ComposedLayout):  # fmt: skip
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        shared = SmemAllocator()
        sA = shared.allocate_tensor(self.dtype, s_a_layout.outer, 1024, s_a_layout.inner)
        sB = shared.allocate_tensor(self.dtype, s_b_layout.outer, 1024, s_b_layout.inner)
        done = shared.allocate_array(Int64)
        held = shared.allocate_array(Int32)
        step = cute.size(tiled_mma.shape_mnk, mode=[2])
        for i in range(thread, self.m * self.k, 128):
            sA[(i // self.k, i % self.k % step), 0, i % self.k // step] = mA[i // self.k, i % self.k]
        for i in range(thread, self.n * self.k, 128):
            sB[(i // self.k, i % self.k % step), 0, i % self.k // step] = mB[i // self.k, i % self.k]
        if warp == 0:
            cute.arch.alloc_tmem(COLUMNS, held)
            cute.arch.relinquish_tmem_alloc_permit()
        if thread == 0:
            cute.arch.mbarrier_init(done, 1)
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.barrier()
        pointer = cute.arch.retrieve_tmem_ptr(self.sums, 16, held)
        tC = tiled_mma.make_fragment_C(tiled_mma.partition_shape_C((self.m, self.n)))
        tC = cute.make_tensor(pointer, tC.layout)
        rA, rB = tiled_mma.make_fragment_A(sA), tiled_mma.make_fragment_B(sB)
        if warp == 0:
            tiled_mma.set(tcgen05.Field.ACCUMULATE, False)
            for i in range(self.k // step, unroll_full=True):
                cute.gemm(tiled_mma, tC, rA[None, None, i], rB[None, None, i], tC)
                tiled_mma.set(tcgen05.Field.ACCUMULATE, True)
            with cute.arch.elect_one():
                tcgen05.commit(done)
        cute.arch.mbarrier_wait(done, 0)
        # ---- to registers and out
        operation, _ = LOADS[self.load]
        pack = tcgen05.Pack.PACK_16b_IN_32b if self.sums is Float16 else tcgen05.Pack.NONE
        atom = cute.make_copy_atom(operation(tcgen05.Repetition(self.repeat), pack), self.sums)
        copy = tcgen05.make_tmem_copy(atom, tC[(None, None), 0, 0])
        mine = copy.get_slice(thread)
        gC = tiled_mma.get_slice(0).partition_C(mC)
        source, target = mine.partition_S(tC[(None, None), 0, 0]), mine.partition_D(gC[(None, None), 0, 0])
        rC = cute.make_rmem_tensor(target.shape, self.sums)
        cute.copy(copy, source, rC)
        cute.arch.fence_view_async_tmem_load()
        for i in range(cute.size(rC), unroll_full=True):
            target[i] = rC[i]
        cute.arch.barrier()
        if warp == 0:
            cute.arch.dealloc_tmem(pointer, COLUMNS)
