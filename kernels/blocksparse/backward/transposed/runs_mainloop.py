# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The main loop of the kernel that works through runs of tiles (runs_kernel.py): steps of mainloop.py, of 80 queries
where a piece is a run of tiles, else of 64."""

import cutlass
from cutlass import Int32, cute

from kernels.blocksparse.backward.tile_iterator import block_at
from kernels.blocksparse.backward.tiling import HALF, RUN_STEP, RUN_TILES
from kernels.blocksparse.backward.transposed import turns
from kernels.blocksparse.backward.transposed.mainloop import multiply_step
from kernels.blocksparse.backward.transposed.runs_loads import RUN_STEPS


@cute.jit
def mainloop_runs(w) -> None:
    """Runs all steps of the row: rdK and rdV, to which products are added, and dQ."""
    storage, tiling, before_reuse = w.storage, w.tiling, w.kernel.before_reuse
    windows = (w.total + HALF - 1) // HALF
    step = Int32(0)
    if windows > 0:
        cute.arch.mbarrier_wait(w.k_full, 0)
        cute.arch.mbarrier_wait(w.v_full, 0)
        for window in cutlass.range(windows, unroll=1):
            # a window's pieces are written before its first step is loaded
            turns.await_full(w.q_full, step, tiling.stages)
            pieces, place = storage.sPieces[window % 2], window % 2 * HALF
            for _ in cutlass.range(pieces, unroll=1):
                turns.await_full(w.q_full, step, tiling.stages)
                block = block_at(storage.sEntries, place)
                if block.starts_run:
                    for part in cutlass.range(RUN_STEPS, unroll=1):
                        multiply_step(w, w.wide, RUN_STEP, place, part, step)
                        step += 1
                    place += RUN_TILES
                else:
                    for part in cutlass.range(tiling.steps, unroll=1):
                        multiply_step(w, w.narrow, tiling.step_m, place, part, step)
                        step += 1
                    place += 1
        before_reuse(w.thread)
