# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The lookout: a warp that looks for the turns of ordered adds ahead of the warpgroups that add.

NOTE [lookout] To look for a turn is to read a semaphore with acquire, for which the warp that looks does nothing else,
and its warpgroup waits for it: some 350 clocks of an H100 for each block beyond what products hide, of 3,100 that a
block takes at head dim 64, though there may be nobody to wait for. The lookout starts to look when a block is
announced, in its first step, and what it saw is awaited a step later: then it has mostly come. The announcement of a
block follows the wait for the one before in both warpgroups, and the lookout waits for both, so none of these barriers
is ever a round ahead. By way of the barrier the adds of all threads come after what the lookout acquired. It is a warp
of a third warpgroup, whose other warps end at once: warpgroups are what hands registers over (setmaxnreg).

NOTE [releaser] A block's last adds are issued early in a step, and its release comes at the next step's start, where
all threads meet anyway (a barrier of their own within the step cost more than it brought). With `Tiling.releaser` the
next warp of the third warpgroup releases: the others arrive at its barrier behind their adds, and go on. It arrives at
a block's turn, which both warpgroups await, once it has been through the barrier of the block before: so that one is
never a round ahead either. A release waits for no turn, which is why it takes a warp of its own.
"""

import cutlass
from cutlass import Int32, cute

from kernels.blocksparse.backward.mainloop_mma import ADDED, release, wait
from kernels.blocksparse.backward.tile_iterator import block_at
from kernels.blocksparse.backward.tiling import THREADS
from kernels.blocksparse.backward.wgmma import WARPGROUP

WARP = 32
GROUPS = THREADS // WARPGROUP
ANNOUNCED = 14  # barriers: a warp of each warpgroup and the lookout
TURN = 12  # and the next one: of each warpgroup with the lookout


@cute.jit
def look_out(w) -> None:
    """The lookout's work: all blocks of the row. It reads the ring, which is filled, and of w only what leads to a
    block's semaphore and its lock."""
    for entry in cutlass.range(w.total, unroll=1):
        cute.arch.barrier(barrier_id=ANNOUNCED, number_of_threads=(GROUPS + 1) * WARP)
        if w.thread == THREADS:
            wait(w, block_at(w.storage.sRing, entry))
        cute.arch.sync_warp()
        arrive_at_turn(w)


@cute.jit
def release_blocks(w) -> None:
    """The releaser's work: all blocks of the row but the last, which `steps.end` releases."""
    for entry in cutlass.range(w.total, unroll=1):
        if entry > 0:
            cute.arch.barrier(barrier_id=ADDED, number_of_threads=THREADS + WARP)
        arrive_at_turn(w)
        if entry > 0 and w.thread == THREADS + WARP:
            release(w, block_at(w.storage.sRing, entry - 1))
        cute.arch.sync_warp()


@cute.jit
def arrive_at_turn(w) -> None:
    """This warp has nothing against the adds of the next block, in either warpgroup."""
    for group in cutlass.range_constexpr(GROUPS):
        cute.arch.barrier_arrive(barrier_id=TURN + group, number_of_threads=waiting_at_turn(w.tiling))


def waiting_at_turn(tiling) -> int:
    """Threads of the barrier at which a warpgroup awaits its turn."""
    return WARPGROUP + WARP * (1 + tiling.releaser)


@cute.jit
def announce_block(thread: Int32) -> None:
    """A warpgroup has begun a block: one of its warps says so, without waiting."""
    if thread % WARPGROUP < WARP:
        cute.arch.barrier_arrive(barrier_id=ANNOUNCED, number_of_threads=(GROUPS + 1) * WARP)


@cute.jit
def await_lookout(w) -> None:
    """A warpgroup waits until it is the turn of the block that was announced last."""
    cute.arch.barrier(barrier_id=TURN + w.thread // WARPGROUP, number_of_threads=waiting_at_turn(w.tiling))


@cute.jit
def tell_releaser() -> None:
    """This thread has issued its last adds of a block."""
    cute.arch.barrier_arrive(barrier_id=ADDED, number_of_threads=THREADS + WARP)
