# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The main loop of the kernel that works through runs of tiles (runs_kernel.py): steps of mainloop.py, of 80 queries
where a piece is a run of tiles, else of 64."""

import cutlass
from cutlass import Int32, cute

from kernels.blocksparse.backward.tile_iterator import block_at
from kernels.blocksparse.backward.tiling import RUN_STEP, RUN_TILES
from kernels.blocksparse.backward.transposed import turns
from kernels.blocksparse.backward.transposed.mainloop import DqOf, clear, finish_dq, held_keys, multiply_step
from kernels.blocksparse.backward.transposed.runs_loads import RUN_STEPS


@cute.jit
def mainloop_runs(w, step: Int32) -> Int32:
    """Runs all steps of a tile that has blocks: as `mainloop_transposed`."""
    storage, tiling, entry = w.storage, w.tiling, w.first_entry
    turns.await_keys(w)
    clear(w)
    held = held_keys(w, w.narrow)
    while entry < w.end_entry:
        turns.await_full(w.q_full, step, tiling.stages_q)  # then its block is in the entry buffer
        block = block_at(storage.sEntries, entry)
        if block.starts_run:
            step = multiply_piece(w, w.wide, held, RUN_STEP, RUN_STEPS, entry, step, entry + RUN_TILES >= w.end_entry)
            entry += RUN_TILES
        else:
            step = multiply_piece(w, w.narrow, held, tiling.step_m, tiling.steps, entry, step, entry + 1 >= w.end_entry)
            entry += 1
        turns.end_window(w, entry)
    return step


@cute.jit
def multiply_piece(
    w, products, held, rows: cutlass.Constexpr, steps: cutlass.Constexpr, entry: Int32, step: Int32, last
) -> Int32:
    """All steps of a piece, dQ among them; returns the number of steps. last: it is the tile's last piece."""
    if cutlass.const_expr(w.tiling.delays_dq):
        multiply_step(w, products, held, rows, entry, Int32(0), step, DqOf.NONE, starts=entry == w.first_entry)
        for part in cutlass.range(1, steps, unroll=1):
            multiply_step(w, products, held, rows, entry, part, step + part, DqOf.STEP_BEFORE)
        finish_dq(w, products, step + steps - 1, last)
    else:
        for part in cutlass.range(steps, unroll=1):
            ends = last & (part == steps - 1)
            multiply_step(w, products, held, rows, entry, part, step + part, DqOf.STEP, last=ends)
    return step + steps
