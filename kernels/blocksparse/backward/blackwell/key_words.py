# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""Masks of the Blackwell backward kernel, whose threads have a key each: a bit per query.

Words are made as for other kernels, a bit per key, with a query in each lane: 32 queries and the warp's 32 keys are a
square of bits, which votes transpose.
"""

import cutlass
from cutlass import Float32, Int32, Uint32, cute

from kernels.blocksparse.backward.blackwell.tuning import HALF
from kernels.blocksparse.backward.mainloop_mma import is_masked, words_of
from kernels.blocksparse.backward.tile_iterator import Block

GROUPS = HALF // 32


class LaneWords:
    """The `Words` that masking.find_words takes: the queries of a lane, and the first of its warp's keys. first_key: of
    the CTA's keys, in the tile of keys of the lists."""

    def __init__(self, thread: Int32, half: Int32, first_key: Int32 | int = 0) -> None:
        self.row = [half * HALF + 32 * group + thread % 32 for group in range(GROUPS)]
        self.first = thread // 32 % 4 * 32 + first_key
        self.lane, self.per_row = Int32(0), 1


@cute.jit
def find_kept(w, block: Block) -> cute.Tensor:
    """Bits of a thread's key: GROUPS words, each of 32 queries; all set where nothing is masked."""
    rKept = cute.make_rmem_tensor(GROUPS, Uint32)
    rKept.fill(Uint32(0xFFFFFFFF))
    if is_masked(w, block):
        rWords = words_of(w, block, Int32(0))
        lane = w.thread % 32
        for group in cutlass.range_constexpr(GROUPS):
            own = Uint32(0)
            for key in cutlass.range_constexpr(32):
                vote = cute.arch.vote_ballot_sync((rWords[group, 0] & Uint32(1 << key)) != Uint32(0))
                own = Uint32(vote) if lane == key else own
            rKept[group] = own
    return rKept


@cute.jit
def apply_kept(rP: cute.Tensor, word: Uint32) -> None:
    """Sets those of 32 queries to zero whose bit is not set."""
    for i in cutlass.range_constexpr(32):
        rP[i] = rP[i] if (word & Uint32(1 << i)) != Uint32(0) else Float32(0.0)
