# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""Barriers of the transposed main loop: NOTE [turns of the transposed loop].

NOTE [turns of the transposed loop] An mbarrier for each arrow between the loading warps and the multiplying warps: a
stage of Q (with LSE, and the step's block in the entry buffer) or of dO (with delta) is full, or empty. Step i uses
stage i % stages for the (i // stages)-th time, which by parity is the phase of `full` that it waits for. A stage
of dS is full when both warpgroups have written theirs, and empty when dQ of both has read it. Named barriers between a
warpgroup and its dQ warp: a buffer of dQ of the warpgroup is full, or empty. Steps take the buffers in turns.
Persistent CTAs count steps over tiles, and have more mbarriers: K and V are empty when a tile's products have read
them; half of the entry buffer is full, or empty when all warps that read it have done its steps; an announced tile is
full, or empty when they have read it; the next one is due.
"""

from enum import IntEnum

import cutlass
from cutlass import Int32, Uint32, cute

from kernels.blocksparse.backward.tiling import HALF, THREADS, TILE_STAGES, Tiling
from kernels.blocksparse.backward.wgmma import WARPGROUP
from kernels.blocksparse.common.buffers import parity_of, stage_of

GROUPS = THREADS // WARPGROUP


def barrier_table(tiling: Tiling) -> dict[str, tuple[int, int]]:
    """name → (how many, arrivals of a phase)."""
    found = {
        "k_full": (1, 1),
        "v_full": (1, 1),
        "q_full": (tiling.stages_q, 1),
        "q_empty": (tiling.stages_q, tiling.reading_warps),
        "do_full": (tiling.stages, 1),
        "do_empty": (tiling.stages, tiling.reading_warps),
    }
    if tiling.exchanges:
        found |= {"peer_keys_full": (1, 1), "peer_ds_full": (1, 1), "peer_ds_empty": (1, tiling.reading_warps)}
    if tiling.persistent:
        found |= {
            "ds_full": (tiling.stages_ds, tiling.reading_warps),
            "ds_empty": (tiling.stages_ds, tiling.reading_warps),
        }
        readers = tiling.reading_warps + 3  # the dQ warps and the loading ones
        found |= {
            "keys_empty": (1, tiling.reading_warps),
            "entries_full": (2, 1),
            "entries_empty": (2, readers),
            "tile_due": (1, 1),
            "tile_full": (TILE_STAGES, 1),
            "tile_empty": (TILE_STAGES, readers),
        }
    return found


class DqBarrier(IntEnum):
    """Named barriers, EMPTY and FULL the first of one for each warpgroup; 0 is `NamedBarrier.MAIN`. Those of a second
    buffer come `SECOND` behind."""

    EMPTY = 1
    FULL = 3


SECOND = 5
START = 5  # the named barrier at which the second warpgroup waits in a tile's first step


@cute.jit
def await_full(full: cute.Pointer, step: Int32, stages: cutlass.Constexpr) -> None:
    """Waits for a step's stage."""
    cute.arch.mbarrier_wait(full + stage_of(step, stages), parity_of(step, stages))


@cute.jit
def await_empty(empty: cute.Pointer, step: Int32, stages: cutlass.Constexpr) -> None:
    """Waits until a step's stage has been read by the step that used it before."""
    # a barrier that has not ended a phase says that the one before the first has ended
    cute.arch.mbarrier_wait(empty + stage_of(step, stages), 1 - parity_of(step, stages))


@cute.jit
def arrive_empty(empty: cute.Pointer, step: Int32, stages: cutlass.Constexpr) -> None:
    """Tells, for a warp, that it has read a step's stage."""
    cute.arch.sync_warp()
    if cute.arch.lane_idx() == 0:
        cute.arch.mbarrier_arrive(empty + stage_of(step, stages))


@cute.jit
def await_window(w, entry: Int32) -> None:
    """Waits for the window of an entry, if the entry is the window's first one."""
    if stage_of(entry, HALF) == 0:
        await_full(w.entries_full, window_of(entry), 2)


@cute.jit
def say_due(w, entry: Int32, following: Int32) -> None:
    """The warp that loads Q lets the scheduling warp take the next tile, at an entry or a run behind which few entries
    are left. following: the entry behind it."""
    due = cutlass.max(w.end_entry - 1, w.first_entry + 1)
    if cutlass.const_expr(w.tiling.takes_late):
        due = w.end_entry
    if (entry < due) & (following >= due):
        arrive_empty(w.tile_due, Int32(0), 1)


def window_of(entry: Int32) -> Int32:
    """The number of an entry's window. Entries are not negative: unsigned division takes fewer instructions."""
    return Int32(Uint32(entry) // HALF)


@cute.jit
def await_keys(w) -> None:
    """Waits for K and V of a tile."""
    await_full(w.k_full, w.key_turn, 1)
    await_full(w.v_full, w.key_turn, 1)


@cute.jit
def end_keys(w, last) -> None:
    """Tells, for a warp, that its products have read K and V, if this was the tile's last step."""
    if last:
        arrive_empty(w.keys_empty, w.key_turn, 1)


@cute.jit
def end_window(w, entry: Int32) -> None:
    """Tells, for a warp, that a window is empty, if it ends before this entry: the warp is done with those before."""
    if (stage_of(entry, HALF) == 0) | (entry == w.end_entry):
        arrive_empty(w.entries_empty, window_of(entry - 1), 2)


@cute.jit
def await_dq(which: Int32, group: Int32, buffer: Int32 = 0) -> None:
    """Waits at a DqBarrier of a warpgroup's buffer: in its threads for EMPTY, in the dQ warp for FULL."""
    cute.arch.barrier(barrier_id=which + group + SECOND * buffer, number_of_threads=WARPGROUP + 32)


@cute.jit
def arrive_dq(which: Int32, group: Int32, buffer: Int32 = 0) -> None:
    """Arrives at a DqBarrier of a warpgroup's buffer, without waiting."""
    cute.arch.barrier_arrive(barrier_id=which + group + SECOND * buffer, number_of_threads=WARPGROUP + 32)


@cute.jit
def offer_dq(w, group: Int32) -> None:
    """The dQ warp of a warpgroup, before its first step: all buffers are empty."""
    for buffer in cutlass.range_constexpr(w.tiling.stages_dq):
        arrive_dq(DqBarrier.EMPTY, group, buffer)


@cute.jit
def drain_dq(w) -> None:
    """A multiplying warpgroup, after its last step: waits until all its buffers have been read."""
    for buffer in cutlass.range_constexpr(w.tiling.stages_dq):
        await_dq(DqBarrier.EMPTY, cute.arch.make_warp_uniform(w.thread // WARPGROUP), buffer)


def buffer_of(w, step: Int32) -> Int32:
    """The buffer of dQ of a step, which is counted over tiles."""
    return stage_of(step, w.tiling.stages_dq)


def turn_of(w, step: Int32) -> Int32:
    """Which of a warpgroup's barriers FULL says that a step's dQ is in its buffer: that of the buffer, or where two dQ
    warps add the steps of ordered runs in turns, that of the warp."""
    in_turns = w.tiling.runs and w.variant.deterministic
    return stage_of(step, GROUPS) if in_turns else buffer_of(w, step)


@cute.jit
def await_start(w, starts) -> None:
    """The second warpgroup begins a tile behind the first one's first products: NOTE [delayed dQ] of mainloop.py."""
    if starts & (cute.arch.make_warp_uniform(w.thread // WARPGROUP) == 1):
        cute.arch.barrier(barrier_id=START, number_of_threads=THREADS)


@cute.jit
def let_start(w, starts) -> None:
    """The first warpgroup has issued them."""
    if starts & (cute.arch.make_warp_uniform(w.thread // WARPGROUP) == 0):
        cute.arch.barrier_arrive(barrier_id=START, number_of_threads=THREADS)
