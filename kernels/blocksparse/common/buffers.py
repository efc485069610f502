# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The mbarriers of buffers in shared memory, which some warps fill and others read.

Step s uses stage s % stages, for the (s // stages)-th time: that is also the number of the phase of `full` that it
waits for, by parity. Every warp counts steps for itself.
"""

from typing import NamedTuple

import cutlass
from cutlass import Int32, Uint32, cute


class Buffers:
    """Barriers of one kind of operand; trace time only. first: of 2 · stages, `full` of each stage and `empty`.
    ctas: of a cluster, all of which release what one of them fills."""

    def __init__(self, first: cute.Pointer, stages: int, ctas: int = 1) -> None:
        self.full, self.empty, self.stages, self.ctas = first, first + stages, stages, ctas


def stage_of(step: Int32, stages: int) -> Int32:
    """The stage of a step. Steps are not negative: unsigned division takes fewer instructions."""
    return Int32(Uint32(step) % stages)


def parity_of(step: Int32, stages: int) -> Int32:
    """The parity of the phase of `full` that a step waits for."""
    return Int32(Uint32(step) // stages % 2)


class Stage(NamedTuple):
    """Where a step's buffer is, for a loop that carries it from step to step, which takes fewer instructions than
    dividing. parity: of the phase of `full` that the step waits for."""

    index: Int32
    parity: Int32


def stage_at(step: Int32, stages: int) -> Stage:
    """The Stage of a step."""
    return Stage(stage_of(step, stages), parity_of(step, stages))


@cute.jit
def next_stage(stage: Stage, stages: cutlass.Constexpr) -> Stage:
    """The Stage of the step after."""
    wraps = stage.index == stages - 1
    return Stage(Int32(0) if wraps else stage.index + 1, stage.parity ^ Int32(wraps))


@cute.jit
def initialise(first: cute.Pointer, count: cutlass.Constexpr, stages: cutlass.Constexpr, consumers: cutlass.Constexpr):
    """One thread: the barriers of `count` Buffers; it then fences (mbarrier_init_fence), and the CTA synchronises.
    `full` counts one arrival, `empty` those of the `consumers`."""
    for i in cutlass.range_constexpr(count * 2 * stages):
        cute.arch.mbarrier_init(first + i, consumers if i // stages % 2 else 1)


@cute.jit
def wait_full(buffers: Buffers, step: Int32) -> None:
    """Waits until the buffer of this step has been filled for it."""
    wait_filled(buffers, stage_at(step, buffers.stages))


@cute.jit
def wait_filled(buffers: Buffers, stage: Stage) -> None:
    """`wait_full` for a step's Stage."""
    cute.arch.mbarrier_wait(buffers.full + stage.index, stage.parity)


@cute.jit
def wait_empty(buffers: Buffers, step: Int32) -> None:
    """Waits until what the buffer of this step had before has been read."""
    # a barrier that has not ended a phase says that the one before the first has ended
    cute.arch.mbarrier_wait(buffers.empty + stage_of(step, buffers.stages), 1 - parity_of(step, buffers.stages))


@cute.jit
def release(buffers: Buffers, step: Int32) -> None:
    """Releases the buffer of this step for this warp, which has read what it needs of it."""
    cute.arch.sync_warp()
    release_multiplied(buffers, step)


@cute.jit
def release_multiplied(buffers: Buffers, step: Int32) -> None:
    """`release` where only the warp's products have read the buffer: its lanes met when they waited for those."""
    release_stage(buffers, stage_of(step, buffers.stages))


@cute.jit
def release_stage(buffers: Buffers, index: Int32) -> None:
    """`release_multiplied` for the index of a step's Stage."""
    if cutlass.const_expr(buffers.ctas == 1):
        if cute.arch.lane_idx() == 0:
            cute.arch.mbarrier_arrive(buffers.empty + index)
    else:
        # A lane for each CTA. It hands over no values but says that they have been read: at the scope of the cluster
        # a release makes the SM wait for its writes, and the kernel a quarter slower.
        if cute.arch.lane_idx() < buffers.ctas:
            cute.arch.mbarrier_arrive(buffers.empty + index, cute.arch.lane_idx())
