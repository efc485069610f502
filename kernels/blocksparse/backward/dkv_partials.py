"""dK and dV of a tile of keys where several CTAs share a group of query heads.

NOTE [dK and dV partials] float32, (units, tiles, 2, fragments): unit is head_kv · group_split + split, `Tiles` says
which tile is whose, as for queries in dq_accumulator.py; dK first, then dV, each in the order in which the backward
kernel's threads hold it. Value v of thread t is at (v // vector) * THREADS * vector + t * vector + v % vector. Every
tile of keys that there is gets its sums from every unit, zeros where a unit lists nothing. Postprocess adds the units
in their order.
"""

from typing import Any

import cutlass
from cutlass import Int32, Int64, cute

from kernels.blocksparse.backward.mma import Product
from kernels.blocksparse.backward.tiling import THREADS, Tiling
from kernels.blocksparse.backward.wgmma import GroupProduct

VECTOR = 4


def keys_product(tiling: Tiling, dtype: type) -> Any:
    """A Product or GroupProduct: dV (tile_n, dim) += P^T (tile_n, step_m) dO (step_m, dim); dK from dS and Q."""
    shape = (tiling.tile_n, tiling.dim, tiling.step_m)
    if tiling.transposed:
        return GroupProduct(dtype, shape, tiling.warps_dkv, transpose_b=True, a_in_registers=True)
    if tiling.wgmma:
        return GroupProduct(dtype, shape, tiling.warps_dkv, transpose_a=True, transpose_b=True)
    return Product(dtype, shape, tiling.warps_dkv, transpose_a=True, transpose_b=True, rows_together=True)


@cute.jit
def sums_of(sums: cute.Pointer, tile: Int64, which: cutlass.Constexpr, tiling: cutlass.Constexpr) -> cute.Pointer:
    """Start of the sums of dK (which 0) or dV (1) of a tile; tile: its number, those of earlier units counted."""
    return sums + cute.assume((2 * tile + which) * (tiling.tile_n * tiling.dim), divby=VECTOR)


@cute.jit
def write_sums(rD: cute.Tensor, target: cute.Pointer, thread: Int32) -> None:
    """Writes a thread's dK or dV."""
    here, there = _views(rD, target, thread)
    cute.autovec_copy(here, there)


@cute.jit
def read_sums(rD: cute.Tensor, source: cute.Pointer, thread: Int32) -> None:
    """The reverse of `write_sums`."""
    here, there = _views(rD, source, thread)
    cute.autovec_copy(there, here)


@cute.jit
def add_sums(rD: cute.Tensor, source: cute.Pointer, thread: Int32) -> None:
    """Adds what `write_sums` wrote to a thread's dK or dV."""
    values = cute.make_rmem_tensor_like(rD)
    read_sums(values, source, thread)
    rD.store(rD.load() + values.load())


def _views(rD: cute.Tensor, pointer: cute.Pointer, thread: Int32) -> tuple[cute.Tensor, cute.Tensor]:
    vectors = cute.size(rD) // VECTOR
    here = cute.make_tensor(rD.iterator, cute.make_layout((VECTOR, vectors)))
    layout = cute.make_layout((VECTOR, vectors), stride=(1, THREADS * VECTOR))
    return here, cute.make_tensor(pointer + thread * VECTOR, layout)
