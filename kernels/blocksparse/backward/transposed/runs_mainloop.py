# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The main loop of the kernel that works through runs of tiles (runs_kernel.py): steps of mainloop.py, of 80 queries
where a piece is a run of tiles, else of 64."""

import cutlass
from cutlass import Int32, cute

from kernels.blocksparse.backward.tile_iterator import block_at
from kernels.blocksparse.backward.tiling import RUN_STEP, RUN_TILES
from kernels.blocksparse.backward.transposed import turns
from kernels.blocksparse.backward.transposed.mainloop import DqOf, clear, finish_dq, multiply_step
from kernels.blocksparse.backward.transposed.runs_loads import RUN_STEPS


@cute.jit
def mainloop_runs(w, step: Int32) -> Int32:
    """Runs all steps of a tile that has blocks: as `mainloop_transposed`."""
    storage, tiling, entry = w.storage, w.tiling, w.first_entry
    turns.await_keys(w)
    clear(w)
    owed = Int32(0)  # 1 where dQ of the step before is not computed yet: that of a run
    while entry < w.end_entry:
        turns.await_full(w.q_full, step, tiling.stages)  # then its block is in the entry buffer
        block = block_at(storage.sEntries, entry)
        if block.starts_run:
            step, owed = multiply_run(w, entry, step, owed)
            entry += RUN_TILES
        else:
            if owed != 0:
                finish_dq(w, w.wide, step - 1)
            owed = Int32(0)
            for part in cutlass.range(tiling.steps, unroll=1):
                multiply_step(w, w.narrow, tiling.step_m, entry, part, step, DqOf.STEP)
                step += 1
            entry += 1
        turns.end_window(w, entry)
    if owed != 0:
        finish_dq(w, w.wide, step - 1)
    return step


@cute.jit
def multiply_run(w, entry: Int32, step: Int32, owed: Int32) -> tuple[Int32, Int32]:
    """All steps of a run. owed: whether a run precedes it; returns the number of steps, and whether dQ of the last one
    is owed."""
    first, which = Int32(0), cutlass.const_expr(DqOf.STEP_BEFORE if w.tiling.delays_dq else DqOf.STEP)
    if cutlass.const_expr(w.tiling.delays_dq):
        if owed == 0:
            multiply_step(w, w.wide, RUN_STEP, entry, Int32(0), step, DqOf.NONE)
            first = Int32(1)
        owed = Int32(1)
    for part in cutlass.range(first, RUN_STEPS, unroll=1):
        multiply_step(w, w.wide, RUN_STEP, entry, part, step + part, which)
    return step + RUN_STEPS, owed
