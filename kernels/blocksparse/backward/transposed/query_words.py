# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""Masks of the transposed main loop, whose accumulators have keys as rows: for each key of a thread a bit per query.

Words are made as for other kernels, a bit per key, with a query in each lane: 32 queries and the warp's 16 keys are a
rectangle of bits, which votes transpose. Blocks with nothing masked pay for a branch.
"""

import cutlass
from cutlass import Int32, Uint32, cute

from kernels.blocksparse.backward.mainloop_mma import words_of
from kernels.blocksparse.backward.tile_iterator import Block
from kernels.blocksparse.common.mask_words import branch

KEYS = 16  # of a warp


class LaneQueries:
    """The `Words` that masking.find_words takes: the queries of a lane, and the first key of the word that has its
    warp's keys."""

    def __init__(self, thread: Int32, step_m: int) -> None:
        self.row = [32 * group + thread % 32 for group in range(step_m // 32)]
        self.first = thread // 64 * 32
        self.lane, self.per_row = Int32(0), 1


@cute.jit
def prefetch_words(w, rWords: cute.Tensor, block: Block, step: Int32, masked) -> None:
    """For each of a lane's queries the bits of its warp's keys; 0 where nothing is masked."""
    rWords.fill(Uint32(0))
    for _ in cutlass.range(branch(masked)):
        found = words_of(w, block, step)
        for group in cutlass.range_constexpr(w.tiling.step_m // 32):
            rWords[group] = found[group, 0] >> Uint32(w.thread // 32 % 2 * KEYS)


@cute.jit
def find_kept(w, rWords: cute.Tensor) -> cute.Tensor:
    """Bits of a thread's two keys, (2, words) of 32 queries, the first bit that of its first column."""
    groups, lane = w.tiling.step_m // 32, w.thread % 32
    rKept = cute.make_rmem_tensor((2, groups), Uint32)
    for group in cutlass.range_constexpr(groups):
        for half in cutlass.range_constexpr(2):
            own = Uint32(0)
            for key in cutlass.range_constexpr(KEYS // 2):
                bit = Uint32(1 << (half * KEYS // 2 + key))
                vote = Uint32(cute.arch.vote_ballot_sync((rWords[group] & bit) != Uint32(0)))
                own = vote if lane // 4 == key else own
            rKept[half, group] = own >> Uint32(lane % 4 * 2)
    return rKept
