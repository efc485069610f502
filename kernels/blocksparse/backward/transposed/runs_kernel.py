# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The transposed backward kernel at dim 128 that works through runs of unmasked tiles in steps of 80 queries. Ordered
adds have it for full masks alone: NOTE [ordered runs] of runs_dq_warps.py.

Each step of the main loop reads the tile's K and V from shared memory, whose bandwidth is what bounds it, and
synchronises the warpgroups. Five tiles of 128 queries are eight steps of 80 instead of ten of 64. All other tiles take
two steps of 64, with the mask: NOTE [pieces] of runs_loads.py.
"""

from types import SimpleNamespace
from typing import Any, NamedTuple

from cutlass import Float32, Int32, cute

from kernels.blocksparse.backward.mma import staged_layout
from kernels.blocksparse.backward.tiling import ENTRY_STAGES, RUN_STEP, TILE_STAGES
from kernels.blocksparse.backward.transposed import runs_dq_warps, runs_loads, tile_scheduler, turns
from kernels.blocksparse.backward.transposed.kernel import TransposedBackward
from kernels.blocksparse.backward.transposed.runs_loads import PARTS, SWIZZLED
from kernels.blocksparse.backward.transposed.runs_mainloop import mainloop_runs
from kernels.blocksparse.backward.transposed.shared_tiles import SharedTiles
from kernels.blocksparse.backward.wgmma import (
    GroupProduct,
    GroupThread,
    operand,
    operand_layout,
    transposed_operand,
)
from kernels.blocksparse.common import mbarriers
from kernels.blocksparse.common.arguments import operand as argument_operand
from kernels.blocksparse.common.bulk import BulkOperand, bulk_operand


class StepOperand(NamedTuple):
    """Q or dO: what loads 64 rows, what loads 80, and what loads parts of these, by their rows."""

    narrow: BulkOperand
    wide: BulkOperand
    parts: dict[int, BulkOperand]


class Stages(NamedTuple):
    """Stages of Q or dO as the loads of 64 rows take them, and those of 80."""

    narrow: cute.Tensor
    wide: cute.Tensor


class RunsBackward(TransposedBackward):
    """The backward kernel of one variant whose tiling has `runs`."""

    look_up, load, add_dq, add_dq_in_order, mainloop = (
        staticmethod(runs_loads.look_up_pieces),
        staticmethod(runs_loads.load_pieces),
        staticmethod(runs_dq_warps.add_pieces),
        staticmethod(runs_dq_warps.add_pieces_in_turns),
        staticmethod(mainloop_runs),
    )

    def operand(self, arguments, name: str) -> Any:
        """Those that are loaded with their tensor maps, Q and dO with two."""
        if name not in ("q", "do"):
            return super().operand(arguments, name)
        found, dim = argument_operand(arguments, name), self.tiling.dim
        sizes = arguments.heads_q, arguments.batch, arguments.dim
        narrow, wide = (
            bulk_operand(found, (rows, dim), operand_layout(self.dtype, rows, dim), *sizes)
            for rows in (self.tiling.step_m, RUN_STEP)
        )
        parts = {rows: bulk_operand(found, (rows, dim), part_layout(self.dtype, rows, dim), *sizes) for rows in PARTS}
        return StepOperand(narrow, wide, parts)

    def products(self, w) -> None:
        """The five products of a thread for steps of 64 and of 80 queries: w.narrow and w.wide."""
        w.narrow, w.wide = self.products_of(w, self.tiling.step_m), self.products_of(w, RUN_STEP)
        w.to_dk, w.to_dv = w.wide.to_dk, w.wide.to_dv

    def products_of(self, w, rows: int) -> SimpleNamespace:
        """Those of steps of so many queries."""
        tiling, s, thread = self.tiling, w.storage, w.thread
        tile_n, dim = tiling.tile_n, tiling.dim
        of_scores = GroupProduct(self.dtype, (tile_n, rows, dim), (8, 1))
        by_keys = GroupProduct(self.dtype, (tile_n, dim, rows), (8, 1), transpose_b=True, a_in_registers=True)
        to_dq = GroupProduct(self.dtype, (dim, rows, tile_n), (8, 1), transpose_a=True)

        def turned(sX):
            return cute.make_tensor(sX.iterator, cute.select(sX.layout, [1, 0, 2]))

        sQ = part_of_stages(s.plainQ, rows, dim, tiling.stages_q)
        sdO = part_of_stages(s.plaindO, rows, dim, tiling.stages)
        sdS = part_of_stages(s.sdS, rows, tile_n, tiling.stages_ds)
        return SimpleNamespace(
            to_s=GroupThread(of_scores, thread, s.sK, sQ, tiling.depth),
            to_dp=GroupThread(of_scores, thread, s.sV, sdO, tiling.depth),
            to_dv=GroupThread(by_keys, thread, None, turned(sdO), columns=tiling.depth),
            to_dk=GroupThread(by_keys, thread, None, turned(sQ), columns=tiling.depth),
            to_dq=GroupThread(to_dq, thread, transposed_operand(s.plainK, tile_n, dim), sdS),
        )

    def stages_of(self, sX: cute.Tensor, stages: int) -> Stages:
        """Stages of 80 rows, as loads take them."""
        step_m, dim = self.tiling.step_m, self.tiling.dim
        return Stages(part_of_stages(sX, step_m, dim, stages), operand(sX, RUN_STEP, dim, stages))

    def shared_memory(self) -> SimpleNamespace:
        """As TransposedBackward's, with stages of 80 queries; a step of 64 has the beginning of one."""
        tiling, memory = self.tiling, SharedTiles(self.dtype)
        tile_n, dim, tensor = tiling.tile_n, tiling.dim, memory.tensor
        stages, stages_q = tiling.stages, tiling.stages_q
        tiles = memory.operands(tile_n, dim, RUN_STEP, stages_q, stages)
        return SimpleNamespace(
            **tiles,
            sQ=self.stages_of(tiles["plainQ"], stages_q),
            sdO=self.stages_of(tiles["plaindO"], stages),
            sdS=tensor(staged_layout(RUN_STEP, tile_n, tiling.stages_ds)),
            sdQ=tensor(cute.make_layout(RUN_STEP * dim * tiling.stages_dq), Float32),
            sLSE=tensor(cute.make_layout((RUN_STEP, stages_q)), Float32),
            sDelta=tensor(cute.make_layout((RUN_STEP, stages)), Float32),
            sEntries=tensor(cute.make_layout((4, ENTRY_STAGES)), Int32),
            sTile=memory.numbers(Int32, (tile_scheduler.ints_of(tiling), TILE_STAGES)),
            sLast=memory.numbers(Int32, (1,)) if tiling.splits else None,
            barriers=memory.barriers(mbarriers.barrier_count(turns.barrier_table(tiling))),
        )


def part_of_stages(sX: cute.Tensor, rows: int, columns: int, stages: int) -> cute.Tensor:
    """(rows, columns, stages) at the beginning of stages of RUN_STEP rows, as `operand` gives it. Its columns lie as
    those of a tile of so many rows."""
    layout = operand_layout(sX.element_type, rows, columns)
    pointer = cute.recast_ptr(sX.iterator, layout.inner, sX.element_type)
    of_rows, of_columns = layout.outer.shape[:2]
    stride = layout.outer.stride
    outer = cute.make_layout((of_rows, of_columns, stages), stride=(stride[0], stride[1], RUN_STEP * columns))
    return cute.make_tensor(pointer, outer)


def part_layout(dtype: type, rows: int, columns: int) -> cute.ComposedLayout:
    """The layout of (rows, columns, 1) within a tile of RUN_STEP rows."""
    layout = operand_layout(dtype, rows, columns)
    (row_stride, (one, _), stage_stride), apart = layout.outer.stride, RUN_STEP * SWIZZLED
    outer = cute.make_layout(layout.outer.shape, stride=(row_stride, (one, apart), stage_stride))
    return cute.make_composed_layout(layout.inner, 0, outer)
