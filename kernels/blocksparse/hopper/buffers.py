# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The shared buffers of K and V, and the warps that fill them.

NOTE [buffers] There are `stages` buffers of K and as many of V, and for each a loading warp that owns it: it waits
until the buffer is empty, copies its step's rows with cp.async, waits for them, fences them for the products, which
read through another path (the async proxy), and says full. Buffers so fill independently of each other, as many loads
on their way as there are buffers. `full` counts one arrival, `empty` one of each multiplying warp. Step s uses stage
s % stages, for the (s // stages)-th time: that is also the number of the phase of `full` that it waits for, by parity.
"""

import cutlass
from cutlass import Int32, cute

from kernels.blocksparse.common.lists import listed


class Buffers:
    """Barriers of one kind of operand; trace time only. first: of 2 · stages, `full` of each stage and `empty`."""

    def __init__(self, first: cute.Pointer, stages: int) -> None:
        self.full, self.empty, self.stages = first, first + stages, stages


@cute.jit
def initialise(first: cute.Pointer, count: cutlass.Constexpr, stages: cutlass.Constexpr, consumers: cutlass.Constexpr):
    """One thread: the barriers of `count` Buffers; the CTA synchronises after it."""
    for i in cutlass.range_constexpr(count * 2 * stages):
        cute.arch.mbarrier_init(first + i, consumers if i // stages % 2 else 1)
    cute.arch.mbarrier_init_fence()


@cute.jit
def wait_full(buffers: Buffers, step: Int32) -> None:
    """Until the buffer of this step has been filled for it."""
    cute.arch.mbarrier_wait(buffers.full + step % buffers.stages, step // buffers.stages % 2)


@cute.jit
def release(buffers: Buffers, step: Int32) -> None:
    """This warp has read what it needs of the buffer of this step."""
    cute.arch.sync_warp()
    if cute.arch.lane_idx() == 0:
        cute.arch.mbarrier_arrive(buffers.empty + step % buffers.stages)


@cute.jit
def fill(w, buffers: Buffers, operand, sX: cute.Tensor, stage: Int32) -> None:
    """A loading warp's whole work: one stage of K or V, for every step that uses it. NOTE [buffers].

    operand   (address of the sequence's first row, stride of rows)
    sX        (step, dim, stages)
    """
    step, stages = w.tuning.step, w.tuning.stages
    pieces = w.variant.tile_n // step
    n_steps = w.walk.entries * pieces
    block = Int32(0)
    if stage < n_steps:
        block = listed(w.walk, stage // pieces)
    for i in cutlass.range((n_steps - stage + stages - 1) // stages):
        s = stage + i * stages
        first_key = block * w.variant.tile_n + s % pieces * step
        if s + stages < n_steps:
            block = listed(w.walk, (s + stages) // pieces)
        # a barrier that has not ended a phase says that the one before the first has ended
        cute.arch.mbarrier_wait(buffers.empty + stage, (i + 1) % 2)
        copy_rows(w, operand, sX[None, None, stage], first_key)
        if cute.arch.lane_idx() == 0:
            cute.arch.mbarrier_arrive(buffers.full + stage)


@cute.jit
def copy_rows(w, operand, sX: cute.Tensor, first_key: Int32) -> None:
    """Copy `step` rows of K or V from `first_key` on, until they are there for the products of other warps."""
    pointer, stride = operand
    start = pointer + w.key_offset(first_key, cute.assume(stride, divby=8))
    w.copy.load(start, stride, w.keys_left(w.length_k, first_key), sX)
    cute.arch.cp_async_commit_group()
    cute.arch.cp_async_wait_group(0)
    cute.arch.fence_view_async_shared()
    cute.arch.sync_warp()
