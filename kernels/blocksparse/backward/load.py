"""Loads of the backward kernel: K and V once, Q, dO and the rows' statistics step by step, into stages of shared
memory."""

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, cute
from cutlass.cute.nvgpu import cpasync

from kernels.blocksparse.backward.dq_accumulator import Tiles, tile_number
from kernels.blocksparse.backward.tile_iterator import Block
from kernels.blocksparse.backward.tiling import Tiling
from kernels.blocksparse.common.list_reader import Operand, Sequence
from kernels.blocksparse.common.tile_loads import TileCopy


class StepLoads:
    """Constants of loading steps. statistics: (lse2, delta), NOTE [statistics] of preprocess.py."""

    def __init__(
        self,
        tiling: Tiling,
        copy: TileCopy,
        thread: Int32,
        q: Operand,
        do: Operand,
        statistics: tuple[cute.Pointer, cute.Pointer],
        tiles: Tiles,
    ) -> None:
        self.tiling, self.copy, self.thread = tiling, copy, thread
        self.q, self.do, self.statistics, self.tiles = q, do, statistics, tiles


@cute.jit
def load_step(
    loads: StepLoads, batch: Int32, seq_q: Sequence, block: Block, step: Int32, targets, stage: Int32, load: Boolean
) -> None:
    """Starts loading a step into a stage of targets: (sQ, sdO, sLSE, sDelta). The caller commits.

    Without `load`, nothing is read, and Q and dO become zeros: so that no branch divides what surrounds the
    call.
    """
    step_m = loads.tiling.step_m
    first = block.m_block * loads.tiling.tile_m + step * step_m
    row = Int64(seq_q.begin) + first
    rows_left = seq_q.length - first if load else Int32(0)
    for operand, sTile in ((loads.q, targets[0]), (loads.do, targets[1])):
        load_rows(
            loads.copy,
            (operand.at(batch, row, block.head), operand.stride_row),
            sTile[None, None, stage],
            rows_left,
        )
    tile = tile_number(loads.tiles, batch, block.head, seq_q.begin, loads.tiling.tile_m)
    at = tile * loads.tiling.tile_m + first
    atom = cute.make_copy_atom(
        cpasync.CopyG2SOp(cache_mode=cpasync.LoadCacheMode.GLOBAL), Float32, num_bits_per_copy=128
    )
    # the first threads copy LSE, sixteen bytes each, the ones after them delta
    for i in cutlass.range_constexpr(2):
        four = loads.thread - i * (step_m // 4)
        if load and four >= 0 and four < step_m // 4:
            source = loads.statistics[i] + cute.assume(at + 4 * four, divby=4)
            target = targets[2 + i].iterator + cute.assume(stage * step_m + 4 * four, divby=4)
            cute.copy(
                atom, cute.make_tensor(source, cute.make_layout(4)), cute.make_tensor(target, cute.make_layout(4))
            )


@cute.jit
def load_rows(copy: TileCopy, rows, sX: cute.Tensor, rows_left: Int32) -> None:
    """Starts loading a tile. rows: (address of the first, elements between rows)."""
    copy.load(rows[0], rows[1], rows_left, sX)


@cute.jit
def store_rows(copy: TileCopy, sX: cute.Tensor, rows, rows_left: Int32) -> None:
    """The reverse of `load_rows`, but done when it returns."""
    copy.store(sX, rows[0], rows[1], rows_left)
