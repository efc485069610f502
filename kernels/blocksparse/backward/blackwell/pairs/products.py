# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The five products of a pair of CTAs, from the shares of NOTE [shares]. S, dP, dV and dK have keys as rows, dQ has
queries. Fragments are those of a product of one CTA's share; the instruction takes the other's at the same place."""

from cutlass import Boolean, Int32, cute
from cutlass.cute.nvgpu import OperandMajorMode
from cutlass.cute.nvgpu import tcgen05 as nvgpu

from kernels.blocksparse.backward.blackwell.tuning import HALF
from kernels.blocksparse.common import tcgen05
from kernels.blocksparse.spec.sm100 import ROWS
from kernels.blocksparse.spec.variant import PAIR_KEYS

K, MN = OperandMajorMode.K, OperandMajorMode.MN
SMEM, TMEM = nvgpu.OperandSource.SMEM, nvgpu.OperandSource.TMEM
PAIR = nvgpu.CtaGroup.TWO


class PairProducts:
    """Operands of the products, as their instructions take them; trace time only."""

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
        self.q_columns = keys.make_fragment_B(by_keys.partition_B(tcgen05.transposed(storage.sQc)))
        self.do_columns = keys.make_fragment_B(by_keys.partition_B(tcgen05.transposed(storage.sdOc)))
        self.ds = dq.make_fragment_A(by_dq.partition_A(tcgen05.transposed(storage.sdS)))
        self.k_columns = dq.make_fragment_B(by_dq.partition_B(tcgen05.transposed(storage.sKc)))

    def scores(self, columns: cute.Pointer, stage: Int32) -> None:
        """S = K Q^T."""
        acc = tcgen05.sums(self.mma_s, columns, ROWS, PAIR_KEYS)
        tcgen05.multiply(self.mma_s, acc, self.k[None, None, None, 0], self.q[None, None, None, stage], False)

    def dp(self, columns: cute.Pointer) -> None:
        """dP = V dO^T."""
        acc = tcgen05.sums(self.mma_s, columns, ROWS, PAIR_KEYS)
        tcgen05.multiply(self.mma_s, acc, self.v[None, None, None, 0], self.do[None, None, None, 0], False)

    def dv(self, columns: cute.Pointer, p: cute.Pointer, add: Boolean) -> None:
        """dV (+)= P dO."""
        self._by_halves(columns, p, self.do_columns[None, None, None, 0], add)

    def dk(self, columns: cute.Pointer, ds: cute.Pointer, add: Boolean) -> None:
        """dK (+)= dS Q."""
        self._by_halves(columns, ds, self.q_columns[None, None, None, 0], add)

    def dq(self, columns: cute.Pointer) -> None:
        """dQ = dS K, of the keys of both CTAs: those of the even one are the first stage of both operands."""
        acc = tcgen05.sums(self.mma_dq, columns, self.dim, ROWS)
        for keys in range(2):
            a, b = self.ds[None, None, None, keys], self.k_columns[None, None, None, keys]
            tcgen05.multiply(self.mma_dq, acc, a, b, keys > 0)

    def _by_halves(self, columns: cute.Pointer, a: cute.Pointer, b: cute.Tensor, add: Boolean) -> None:
        acc, pieces = tcgen05.sums(self.mma_keys, columns, self.dim, PAIR_KEYS), HALF // 16
        for half in range(2):
            operand = tcgen05.operand_a(self.mma_keys, a + half * HALF, self.dtype, HALF, PAIR_KEYS)
            tcgen05.multiply(self.mma_keys, acc, operand, b, add if half == 0 else True, half * pieces)
