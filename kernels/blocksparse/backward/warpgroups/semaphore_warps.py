# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The semaphore-wait and the semaphore-release warp: they acquire and release semaphores of ordered adds beside the
warpgroups that add.

NOTE [semaphore-wait warp] Acquiring a semaphore means reading it until it equals the block's lock. A warp that does so
does nothing else, and its warpgroup waits for it: some 350 clocks of an H100 for each block beyond what the wgmma hide,
of 3,100 that a block takes at head dim 64, though the semaphore may be free. The semaphore-wait warp starts to read
when a block is announced, in its first step, and its result is awaited a step later: by then it has mostly come. The
announcement of a block follows the wait for the one before in both warpgroups, and the semaphore-wait warp waits for
both, so none of these barriers is ever a round ahead. The barrier orders the adds of all threads after the acquire. The
warp belongs to a third warpgroup, whose other warps end at once: registers are moved between warpgroups (setmaxnreg).

NOTE [semaphore-release warp] A block's last adds are issued early in a step, and its release comes at the next step's
start, where all threads meet anyway (a barrier of their own within the step cost more than it brought). With
`Tiling.release_warp` the next warp of the third warpgroup releases: the others arrive at its barrier behind their adds,
and go on. It arrives at the ACQUIRED barriers of a block once it has been through the ADDED barrier of the block
before: so that one is never a round ahead either. A release waits for no acquire, so it takes a warp of its own.
"""

import cutlass
from cutlass import Int32, cute

from kernels.blocksparse.backward.mainloop_mma import release, wait
from kernels.blocksparse.backward.named_barriers import NamedBarrier
from kernels.blocksparse.backward.tile_iterator import block_at
from kernels.blocksparse.backward.tiling import THREADS
from kernels.blocksparse.backward.wgmma import WARPGROUP

WARP = 32
GROUPS = THREADS // WARPGROUP


@cute.jit
def wait_for_blocks(w) -> None:
    """The semaphore-wait warp: acquires the semaphore of every block of the row, in order. It reads the entry buffer,
    which is filled, and of w only what leads to a block's semaphore and its lock."""
    for entry in cutlass.range(w.total, unroll=1):
        cute.arch.barrier(barrier_id=int(NamedBarrier.ANNOUNCED), number_of_threads=(GROUPS + 1) * WARP)
        if w.thread == THREADS:
            wait(w, block_at(w.storage.sEntries, entry))
        cute.arch.sync_warp()
        arrive_at_acquired(w)


@cute.jit
def release_blocks(w) -> None:
    """The semaphore-release warp: releases all blocks of the row but the last, which `mainloop_mma.end` releases."""
    for entry in cutlass.range(w.total, unroll=1):
        if entry > 0:
            cute.arch.barrier(barrier_id=int(NamedBarrier.ADDED), number_of_threads=THREADS + WARP)
        arrive_at_acquired(w)
        if entry > 0 and w.thread == THREADS + WARP:
            release(w, block_at(w.storage.sEntries, entry - 1))
        cute.arch.sync_warp()


@cute.jit
def arrive_at_acquired(w) -> None:
    """Arrives, for this warp, at both warpgroups' ACQUIRED barriers: it lets the next block's adds begin."""
    for group in cutlass.range_constexpr(GROUPS):
        cute.arch.barrier_arrive(
            barrier_id=int(NamedBarrier.ACQUIRED) + group, number_of_threads=acquired_threads(w.tiling)
        )


def acquired_threads(tiling) -> int:
    """Threads of a warpgroup's ACQUIRED barrier."""
    return WARPGROUP + WARP * (1 + tiling.release_warp)


@cute.jit
def announce_block(thread: Int32) -> None:
    """Arrives at the ANNOUNCED barrier, without waiting, in one warp of each warpgroup that has begun a block."""
    if thread % WARPGROUP < WARP:
        cute.arch.barrier_arrive(barrier_id=int(NamedBarrier.ANNOUNCED), number_of_threads=(GROUPS + 1) * WARP)


@cute.jit
def await_wait_warp(w) -> None:
    """Waits, in a warpgroup, until the semaphore of the block that was announced last has been acquired."""
    cute.arch.barrier(
        barrier_id=int(NamedBarrier.ACQUIRED) + w.thread // WARPGROUP, number_of_threads=acquired_threads(w.tiling)
    )


@cute.jit
def notify_release_warp() -> None:
    """Arrives at the ADDED barrier: this thread has issued its last adds of a block."""
    cute.arch.barrier_arrive(barrier_id=int(NamedBarrier.ADDED), number_of_threads=THREADS + WARP)
