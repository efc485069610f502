# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""Shared memory of the loops that load by TMA: tiles of K, V, Q and dO, and what stands behind them."""

from cutlass import Int64, cute
from cutlass.memory import SmemAllocator

from kernels.blocksparse.backward.mma import staged_layout
from kernels.blocksparse.backward.wgmma import operand


class SharedTiles:
    """Allocates tensors of a CTA, in the order of the calls. dtype: of K, V, Q and dO."""

    def __init__(self, dtype) -> None:
        self.dtype, self.memory = dtype, SmemAllocator()

    def tensor(self, layout, dtype=None) -> cute.Tensor:
        """A tensor; one of the operands' dtype can be an operand of wgmma."""
        alignment = 1024 if dtype is None or dtype is self.dtype else 128
        return self.memory.allocate_tensor(dtype or self.dtype, layout, byte_alignment=alignment)

    def operands(self, tile_n: int, dim: int, rows: int, stages_q: int, stages_do: int) -> dict[str, cute.Tensor]:
        """K and V of `tile_n` rows, then stages of `rows` rows of Q, then of dO: `plain` ones with their swizzle in the
        layout; K and V also as bulk copies and products take them."""
        by_key = staged_layout(tile_n, dim, 1)
        plainK, plainV = self.tensor(by_key), self.tensor(by_key)
        return {
            "plainK": plainK[None, None, 0],
            "plainV": plainV[None, None, 0],
            "plainQ": self.tensor(staged_layout(rows, dim, stages_q)),
            "plaindO": self.tensor(staged_layout(rows, dim, stages_do)),
            "sK": operand(plainK, tile_n, dim, 1),
            "sV": operand(plainV, tile_n, dim, 1),
        }

    def numbers(self, dtype, count: int):
        """A tensor of numbers, aligned to 8 bytes."""
        return self.memory.allocate_tensor(dtype, cute.make_layout(count), byte_alignment=8)

    def barriers(self, count: int):
        """So many mbarriers."""
        return self.memory.allocate_array(Int64, count, byte_alignment=8)
