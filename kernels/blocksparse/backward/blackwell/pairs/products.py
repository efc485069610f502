# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The five products of a pair of CTAs, from the shares of NOTE [shares]. S, dP, dV and dK have keys as rows, dQ has
queries. Fragments are those of a product of one CTA's share; the instruction takes the other's at the same place."""

from cutlass import cute
from cutlass.cute.nvgpu import OperandMajorMode
from cutlass.cute.nvgpu import tcgen05 as nvgpu

from kernels.blocksparse.backward.blackwell.products import Products
from kernels.blocksparse.backward.blackwell.tuning import HALF
from kernels.blocksparse.common import tcgen05
from kernels.blocksparse.spec.sm100 import ROWS
from kernels.blocksparse.spec.variant import PAIR_KEYS

K, MN = OperandMajorMode.K, OperandMajorMode.MN
SMEM, TMEM = nvgpu.OperandSource.SMEM, nvgpu.OperandSource.TMEM
PAIR = nvgpu.CtaGroup.TWO


class PairProducts(Products):
    """Operands of the products of a pair; of Q, dO and K, transposed, those by columns."""

    keys = PAIR_KEYS

    def __init__(self, w) -> None:
        storage, dtype, dim = w.storage, w.dtype, w.tiling.dim
        self.dtype, self.dim = dtype, dim
        self.mma_s = tcgen05.tiled(dtype, ROWS, SMEM, K, K, PAIR_KEYS, PAIR)
        self.mma_keys = tcgen05.tiled(dtype, dim, TMEM, MN, K, PAIR_KEYS, PAIR)
        self.mma_dq = tcgen05.tiled(dtype, dim, SMEM, MN, MN, ROWS, PAIR)
        by_s = tcgen05.tiled(dtype, HALF, SMEM, K).get_slice(0)
        by_keys = tcgen05.tiled(dtype, dim // 2, TMEM, MN).get_slice(0)
        by_dq = tcgen05.tiled(dtype, dim // 2, SMEM, MN, MN, HALF).get_slice(0)
        s, keys, dq = self.mma_s, self.mma_keys, self.mma_dq
        self.k = s.make_fragment_A(by_s.partition_A(storage.sK))
        self.v = s.make_fragment_A(by_s.partition_A(storage.sV))
        self.q = s.make_fragment_B(by_s.partition_B(storage.sQ))
        self.do = s.make_fragment_B(by_s.partition_B(storage.sdO))
        self.q_transposed = keys.make_fragment_B(by_keys.partition_B(tcgen05.transposed(storage.sQc)))
        self.do_transposed = keys.make_fragment_B(by_keys.partition_B(tcgen05.transposed(storage.sdOc)))
        self.ds = dq.make_fragment_A(by_dq.partition_A(tcgen05.transposed(storage.sdS)))
        self.k_transposed = dq.make_fragment_B(by_dq.partition_B(tcgen05.transposed(storage.sKc)))

    def dq(self, columns: cute.Pointer) -> None:
        """dQ = dS K, of the keys of both CTAs: those of the even one are the first stage of both operands."""
        acc = tcgen05.sums(self.mma_dq, columns, self.dim, ROWS)
        for keys in range(2):
            a, b = self.ds[None, None, None, keys], self.k_transposed[None, None, None, keys]
            tcgen05.multiply(self.mma_dq, acc, a, b, keys > 0)
