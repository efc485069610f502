"""Named barriers of the backward kernel (PTX `barrier`, 16 of a CTA)."""

from enum import IntEnum


class NamedBarrier(IntEnum):
    """Barrier numbers.

    MAIN       all threads that multiply; without semaphore warps the CTA's own barrier
    GROUP      the first of up to eight: one for each group of neighbouring warps (mma.sync), NOTE [groups] of
               mainloop_mma.py
    ACQUIRED   the first of two, one for each warpgroup: its block's semaphore has been acquired
    ANNOUNCED  a warp of each warpgroup and the semaphore-wait warp: the warpgroups have begun a block
    ADDED      a block's adds have been issued; the warp that waits at it releases the block's semaphore
    """

    MAIN = 0
    GROUP = 1
    ACQUIRED = 12
    ANNOUNCED = 14
    ADDED = 15
