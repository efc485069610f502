# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""What two CTAs of a cluster that have the halves of a tile of 128 keys send each other: dS, and columns of K.

NOTE [exchanged dS] Both CTAs come to the same steps. Each multiplies dQ for the keys of both, but half of its columns:
so a step's dQ is added once for 128 keys, not for 64. For that a CTA has the peer's K in these columns, copied once
from the peer's shared memory, and gets the peer's dS of each step by a bulk copy which the peer issues.

    columns of dQ       up to head dim 192: dK's warpgroup, dV's    beyond it: dV's warpgroup, dK's
    first CTA           0 to 63, 64 to 95                           0 to 63, 64 to 127
    second CTA          128 to 191, 96 to 127                       128 to 191, 192 to 255

Up to head dim 192 the last columns of K's and V's tiles, which no product reads, have room for dQ of the warpgroup of
dV and for the peer's dS. Beyond it that warpgroup leaves dQ in P's buffer (`Tiling.dq_in_p`): dS of the step, which it
awaits before dQ, was made from P. It writes P of the next step when its dQ warp has read dQ.

A step's dS is sent when both warpgroups of the peer have multiplied the one before. Of each CTA's mbarriers
`peer_keys_full` and `peer_ds_full` say that the peer's K and dS have come; at `peer_ds_empty` the peer's warps tell
that its own dS may be sent. Then the copy before has been read, so that its source may be written too.
"""

import cutlass
from cutlass import Int32, cute

from kernels.blocksparse.backward.tiling import Tiling
from kernels.blocksparse.backward.transposed import turns
from kernels.blocksparse.common.bulk import send_run

CTAS = 2
ATOM = 64  # columns of a tile that lie together in shared memory
PEER_ATOMS = 2  # so many times as many of the peer's K


def first_column(tiling: Tiling, rank: Int32, group: int) -> Int32:
    """The first column of dQ of a CTA's warpgroup."""
    if tiling.dq_in_p:
        return 2 * ATOM * rank + ATOM * group
    return ATOM + ATOM // 2 * rank if group else 2 * ATOM * rank


def atom_of(tiling: Tiling, rank: Int32, group: int) -> Int32:
    """The atom of K's columns in which it lies."""
    if tiling.dq_in_p:
        return 2 * rank + group
    return Int32(1) if group else 2 * rank


def first_atom(tiling: Tiling, rank: Int32) -> Int32:
    """The first atom of the columns that a CTA multiplies: the first one of what it has of the peer's K."""
    return 2 * rank if tiling.dq_in_p else rank


def peer_atom_of(tiling: Tiling, rank: Int32, group: int) -> Int32:
    """`atom_of` in what a CTA has of the peer's K."""
    return atom_of(tiling, rank, group) - first_atom(tiling, rank)


def floats_to_add(tiling: Tiling, rank: Int32, group: int) -> Int32:
    """Floats of a step's dQ of a CTA's warpgroup, in the columns that the head dim has."""
    depth = tiling.depth or tiling.dim
    last = ATOM - rank * (-depth % ATOM)  # of the warpgroup that has the head dim's last columns in the second CTA
    if tiling.dq_in_p:
        columns = last if group else Int32(ATOM)
    else:
        columns = Int32(ATOM // 2) if group else last
    return columns * tiling.step_m


def bytes_of_keys(tiling: Tiling) -> int:
    """Bytes of K that a CTA has of the peer's."""
    return 2 * PEER_ATOMS * ATOM * tiling.tile_n


def bytes_of_ds(tiling: Tiling) -> int:
    """Bytes of a step's dS."""
    return 2 * tiling.tile_n * tiling.step_m


@cute.jit
def expect_first(w) -> None:
    """One thread: K and the first step's dS will come."""
    if w.total > 0:
        cute.arch.mbarrier_arrive_and_expect_tx(w.peer_keys_full, bytes_of_keys(w.tiling))
        cute.arch.mbarrier_arrive_and_expect_tx(w.peer_ds_full, bytes_of_ds(w.tiling))


@cute.jit
def expect_next(w, step: Int32, steps: Int32) -> None:
    """In one thread of the warpgroup of dK, when a step's dS has come: that of the next one will."""
    if (w.thread == 0) & (step + 1 < steps):
        cute.arch.mbarrier_arrive_and_expect_tx(w.peer_ds_full, bytes_of_ds(w.tiling))


@cute.jit
def send_keys(w) -> None:
    """A warp sends the peer the columns of K that it multiplies."""
    peer, atom = 1 - w.rank, cutlass.const_expr(ATOM * w.tiling.tile_n)
    if w.total > 0:
        cute.arch.mbarrier_wait(w.k_full, 0)
        if cute.arch.lane_idx() == 0:
            source = w.storage.plainK.iterator + cute.assume(first_atom(w.tiling, peer) * atom, divby=atom)
            target = cute.arch.map_dsmem_ptr(w.storage.plainPeerK.iterator, peer)
            full = cute.arch.map_dsmem_ptr(w.peer_keys_full, peer)
            send_run(target, source, bytes_of_keys(w.tiling), full)
        cute.arch.sync_warp()


@cute.jit
def send_ds(w) -> None:
    """In one thread of the warpgroup of dK: sends a step's dS, all of which is in shared memory."""
    if w.thread == 0:
        peer = 1 - w.rank
        target = cute.arch.map_dsmem_ptr(w.storage.sPeerdS.iterator, peer)
        full = cute.arch.map_dsmem_ptr(w.peer_ds_full, peer)
        send_run(target, w.storage.sdS.iterator, bytes_of_ds(w.tiling), full)


@cute.jit
def await_keys(w) -> None:
    """Waits for the peer's K."""
    cute.arch.mbarrier_wait(w.peer_keys_full, 0)


@cute.jit
def await_ds(w, step: Int32) -> None:
    """Waits for the peer's dS of a step."""
    turns.await_full(w.peer_ds_full, step, 1)


@cute.jit
def let_send(w) -> None:
    """A multiplying warp lets the peer send the next step's dS: it has multiplied the last one."""
    cute.arch.sync_warp()
    if cute.arch.lane_idx() == 0:
        cute.arch.mbarrier_arrive(w.peer_ds_empty, 1 - w.rank)


@cute.jit
def await_leave(w, step: Int32) -> None:
    """Waits until a step's dS may be sent."""
    turns.await_full(w.peer_ds_empty, step, 1)
