# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The five products of the Blackwell backward kernel. S, dP, dV and dK have keys as rows, dQ has queries.

P and dS come from tensor memory as operand A of dV and dK, each half of the queries where its threads left it; dS from
shared memory, where it lies with keys as rows, transposed, as operand A of dQ.
"""

from cutlass import Boolean, Int32, cute
from cutlass.cute.nvgpu import OperandMajorMode
from cutlass.cute.nvgpu import tcgen05 as nvgpu

from kernels.blocksparse.backward.blackwell.tuning import HALF
from kernels.blocksparse.common import tcgen05
from kernels.blocksparse.spec.sm100 import ROWS


class Products:
    """Operands of the products, as their instructions take them; trace time only. keys: of a product."""

    keys = ROWS

    def __init__(self, w) -> None:
        storage, dim, self.dtype, self.dim = w.storage, w.tiling.dim, w.dtype, w.tiling.dim
        self.mma_s = tcgen05.scores_mma(w.dtype, ROWS)
        self.mma_keys = tcgen05.values_mma(w.dtype, dim)
        self.mma_dq = tcgen05.tiled(w.dtype, dim, nvgpu.OperandSource.SMEM, OperandMajorMode.MN, OperandMajorMode.MN)
        by_s, by_keys, by_dq = (mma.get_slice(0) for mma in (self.mma_s, self.mma_keys, self.mma_dq))
        self.k = by_s.make_fragment_A(by_s.partition_A(storage.sK))
        self.v = by_s.make_fragment_A(by_s.partition_A(storage.sV))
        self.q = by_s.make_fragment_B(by_s.partition_B(storage.sQ))
        self.do = by_s.make_fragment_B(by_s.partition_B(storage.sdO))
        self.q_transposed = by_keys.make_fragment_B(by_keys.partition_B(tcgen05.transposed(storage.sQ)))
        self.do_transposed = by_keys.make_fragment_B(by_keys.partition_B(tcgen05.transposed(storage.sdO)))
        self.ds = by_dq.make_fragment_A(by_dq.partition_A(tcgen05.transposed(storage.sdS)))
        self.k_transposed = by_dq.make_fragment_B(by_dq.partition_B(tcgen05.transposed(storage.sK)))

    def scores(self, columns: cute.Pointer, stage: Int32) -> None:
        """S = K Q^T."""
        acc = tcgen05.sums(self.mma_s, columns, ROWS, self.keys)
        tcgen05.multiply(self.mma_s, acc, self.k[None, None, None, 0], self.q[None, None, None, stage], False)

    def dp(self, columns: cute.Pointer) -> None:
        """dP = V dO^T."""
        acc = tcgen05.sums(self.mma_s, columns, ROWS, self.keys)
        tcgen05.multiply(self.mma_s, acc, self.v[None, None, None, 0], self.do[None, None, None, 0], False)

    def dv(self, columns: cute.Pointer, p: cute.Pointer, add: Boolean) -> None:
        """dV (+)= P dO."""
        self._by_halves(columns, p, self.do_transposed[None, None, None, 0], add)

    def dk(self, columns: cute.Pointer, ds: cute.Pointer, stage: Int32, add: Boolean) -> None:
        """dK (+)= dS Q."""
        self._by_halves(columns, ds, self.q_transposed[None, None, None, stage], add)

    def dq(self, columns: cute.Pointer) -> None:
        """dQ = dS K."""
        acc = tcgen05.sums(self.mma_dq, columns, self.dim)
        tcgen05.multiply(self.mma_dq, acc, self.ds[None, None, None, 0], self.k_transposed[None, None, None, 0], False)

    def _by_halves(self, columns: cute.Pointer, a: cute.Pointer, b: cute.Tensor, add: Boolean) -> None:
        acc, pieces = tcgen05.sums(self.mma_keys, columns, self.dim, self.keys), HALF // 16
        for half in range(2):
            operand = tcgen05.operand_a(self.mma_keys, a + half * HALF, self.dtype, HALF, self.keys)
            tcgen05.multiply(self.mma_keys, acc, operand, b, add if half == 0 else True, half * pieces)
