"""The state of a running launch as arrays that compiled code shares with Python, and the names of their entries.

`Machine` is a tuple of arrays, so numba passes it at no cost. A warp's index is slot * warps_per_cta + warp. Scalars of
the launch live in `k`, findings in `findings`; `watch` lists what a sleeping warp waits for.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Machine(NamedTuple):
    """Arrays of one launch; W is the number of resident warps (slots x warps per CTA), n the micro-operations."""

    k: np.ndarray  # int64, launch constants and counters, see below
    segments: np.ndarray  # int64 (segments, 8)
    pc: np.ndarray  # int64 (W) where the running lanes are
    mask: np.ndarray  # int64 (W) the lanes that run
    stop: np.ndarray  # int64 (W) the next place where other lanes wait to run
    alive: np.ndarray  # int64 (W) lanes that have not exited
    parked: np.ndarray  # int64 (W) lanes that wait for others of the warp at a .sync instruction
    asleep: np.ndarray  # int64 (W) lanes that spin on unchanged memory
    status: np.ndarray  # int64 (W)
    lane_pc: np.ndarray  # int64 (W, 32)
    barrier_at: np.ndarray  # int64 (W, 3) the barrier that the warp waits at; a reduction's destination and kind
    arrived: np.ndarray  # int64 (slots, 16) threads
    expected: np.ndarray  # int64 (slots, 16) threads, 0: nobody there
    gathered: np.ndarray  # int64 (slots, 16, 3) and, or, popc of a barrier's reduction
    cta: np.ndarray  # int64 (slots, 8): linear index or -1, x, y, z, warps alive, age
    wrote: np.ndarray  # int64 (W) has it written since its spin began to be counted
    spin: np.ndarray  # int64 (W, 4) backward branches, next snapshot, snapshot's pc (-1: none), its mask
    watch: np.ndarray  # int64 (W, WATCHED) host addresses read since the snapshot
    watch_virtual: np.ndarray  # int64 (W, WATCHED) the same as the kernel knows them
    watched: np.ndarray  # int64 (W) how many, -1: too many
    groups: np.ndarray  # int64 (W, 32) cp.async groups that each lane has committed
    copies: np.ndarray  # int64 (W, COPIES, 6) pending: lane, group, to, from (host), bytes, source bytes
    pending: np.ndarray  # int64 (W) how many
    findings: np.ndarray  # int64 (FINDINGS, 12)
    seen: np.ndarray  # uint8 (kinds, n) findings made already
    order: np.ndarray  # int64 (CTAs) linear indices in the order of dispatch
    special: np.ndarray  # int64 (specials, 3) place, what, wide
    scratch: np.ndarray  # uint8


WATCHED = 256
COPIES = 4096
FINDINGS = 256

# entries of `k`
(K_CODE, K_CONSTANTS, K_REGISTERS, K_STRIDE, K_WARPS, K_SLOTS, K_SHARED, K_SHARED_SIZE, K_SHARED_STRIDE, K_PARAMS,
 K_PARAMS_SIZE, K_LOCAL, K_LOCAL_SIZE, K_THREADS, K_GRID_X, K_GRID_Y, K_GRID_Z, K_BLOCK_X, K_BLOCK_Y, K_BLOCK_Z, K_CTAS,
 K_NEXT, K_FINISHED, K_SLEEPERS, K_FINDINGS, K_POLICY, K_SEED, K_QUANTUM, K_BUDGET, K_EXECUTED, K_CHECKS, K_DYNAMIC,
 K_SNAPSHOTS, K_LAST, K_CODE_SIZE, K_AGE, K_SEGMENTS, K_TRACE, K_COPIED_OUT, K_EXTRA, K_SIZE) = range(41)  # fmt: skip

RUNNING, AT_BARRIER, ASLEEP, DONE, EMPTY = range(5)

# columns of `segments`
S_LOW, S_HIGH, S_HOST, S_FLAGS, S_WRITE, S_READ, S_GRANULE, S_SPARE = range(8)

# what a finding is; the names that people read are in `report.py`
(F_BOUNDS, F_ALIGN, F_UNMAPPED, F_SHARED_BOUNDS, F_BARRIER_DIVERGED, F_BARRIER_COUNT, F_SYNC_MISSING, F_TRAP, F_COPIES,
 F_UNINITIALISED, F_RACE_WW, F_RACE_WR, F_RACE_RW, F_WRAPPED, F_PARAM, F_UNCONVERGED, F_BARRIER_ID) = range(17)  # fmt: skip
KINDS = 17
# columns of a finding
(C_KIND, C_PC, C_CTA, C_WARP, C_LANE, C_ADDRESS, C_SIZE, C_OTHER_CTA, C_OTHER_WARP, C_OTHER_PC, C_VALUE,
 C_SPARE) = range(12)  # fmt: skip

# results of `run`
FINISHED, DEADLOCK, OUT_OF_BUDGET, TOO_MANY = range(4)

IN_ORDER, RANDOM, STARVE_OLDEST, ONE_FIRST = range(4)
