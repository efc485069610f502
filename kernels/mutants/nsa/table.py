"""Mutants of `kernels.nsa`: each replaces one step, written as it was written in a project, or as it might be.

Sources named MSLK are of its native sparse attention, mslk/attention/sparse_attn.
"""

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.blocksparse.lists.transpose import transpose, with_backward
from kernels.blocksparse.lists.types import Bits, BlockList, BlockLists, BlockSparse, Intervals
from kernels.blocksparse.lists.write_order import with_order
from kernels.mutants.blocksparse.table import injections_for
from kernels.mutants.nsa import separate_dq  # noqa: F401  (registers its own)
from kernels.mutants.nsa.registration import MUTANTS, register_mutant
from kernels.nsa.choice import allowed_blocks
from kernels.nsa.choose import may_choose
from kernels.nsa.compress import project_backward
from kernels.nsa.config import GROUP
from kernels.sdpa.tiles import round_to, widen

__all__ = ["MUTANTS"]


def _and_the_next(block: Tensor, tile: Tensor, size: int, per_tile: int, causal: int) -> Tensor:
    if causal != 1:
        return allowed_blocks(block, tile, size, per_tile, causal)
    return block * size <= (tile + 1) * per_tile


@triton.jit
def _and_the_next_in_a_kernel(block, tile, size, per_tile, CAUSAL: tl.constexpr):
    if CAUSAL == 1:
        found = block * size <= (tile + 1) * per_tile
    else:
        found = may_choose(block, tile, size, per_tile, CAUSAL)
    return found


register_mutant(
    "future_block_selected",
    "A tile may also select the block that begins where it ends: its causal mask hides all of it, and the block that "
    "would have come instead is missing.",
    "invented, after MSLK: future iff j · size >= (tile + 1) · 256, with > for >=",
    allowed_blocks=_and_the_next,
    may_choose=_and_the_next_in_a_kernel,
)


def _of_the_tile_before(block: Tensor, tile: Tensor, size: int, per_tile: int, causal: int) -> Tensor:
    if causal != 1:
        return allowed_blocks(block, tile, size, per_tile, causal)
    return block * size < tile * per_tile


@triton.jit
def _of_the_tile_before_in_a_kernel(block, tile, size, per_tile, CAUSAL: tl.constexpr):
    if CAUSAL == 1:
        found = block * size < tile * per_tile
    else:
        found = may_choose(block, tile, size, per_tile, CAUSAL)
    return found


register_mutant(
    "own_tile_not_selectable",
    "A tile may select the blocks before it alone, none of its own.",
    "invented, after MSLK: (tile + 1) · 256 in the causal rule, with tile · 256 for it",
    allowed_blocks=_of_the_tile_before,
    may_choose=_of_the_tile_before_in_a_kernel,
)


@triton.jit
def _less_than_the_places(rank, places):
    return rank < places


register_mutant(
    "smallest_chosen_left_out",
    "Where a tile may select more blocks than it has places for, the one of the smallest chosen score is missing.",
    "invented, after a top k by a threshold: score > threshold, with >= and a count of those that equal it",
    is_first=_less_than_the_places,
)

register_mutant(
    "selection_not_sorted",
    "Selected blocks come in the order of their scores: the lists leave out a block that is below one before it.",
    "invented, after MSLK: torch.topk without the sort that its removal of duplicates relies on",
    ascending=lambda found: found,
)


def _widened(blocks: BlockSparse, branch: str, backward: bool) -> BlockSparse:
    mask = blocks.mask
    if branch != "selected" or not isinstance(mask, Bits):
        return blocks
    patterns = int((mask.words == -1).flatten(1).all(1).to(torch.int8).argmax()) + 1  # the first that hides nothing
    cuts = mask.words.view(-1, patterns, *mask.words.shape[1:])
    words = cuts[:, -1:].expand_as(cuts).reshape(mask.words.shape).contiguous()
    return replace(blocks, mask=replace(mask, words=words))


register_mutant(
    "selected_block_widened",
    "A selected block that is smaller than a tile of keys shows the whole tile.",
    "MSLK: (j · size) // 128 as a full block, a superset of the selection",
    lists=_widened,
)


def _counts_ignored(blocks: BlockSparse, branch: str, backward: bool) -> BlockSparse:
    if branch != "selected" or not backward or blocks.backward is None or not isinstance(blocks.mask, Bits):
        return blocks
    slots = blocks.mask.slot_backward
    assert slots is not None
    (partial, source), (full, _) = (
        transpose(one, blocks.m_blocks) for one in (blocks.backward.partial, blocks.backward.full)
    )
    width = max(blocks.backward.full.capacity // max(full.count.numel(), 1), 1)
    rows = full.to_padded(width, -1)[1]
    listed = (torch.cat((partial.to_padded(width, -1)[1], rows), -1) == 0).any(-1)
    more = ~listed & (partial.count + full.count < width)
    every = BlockLists(partial, BlockList.padded(full.count + more.to(torch.int32), rows.clamp(min=0)))
    mask = replace(blocks.mask, slot=slots[source])
    wrong = with_order(with_backward(replace(blocks, forward=every, mask=mask), blocks.backward.rows))
    return replace(blocks, backward=wrong.backward, order=wrong.order, mask=wrong.mask, merged=wrong.merged)


register_mutant(
    "transposition_ignores_counts",
    "Backward lists also have a place that a row does not use: it names the first keys, which get gradients of tiles "
    "that do not see them.",
    "invented, after MSLK: _transpose_block_sparse_for_bwd, without the counts of its rows",
    lists=_counts_ignored,
)


def _bounds_moved(by: int, blocks: BlockSparse, branch: str) -> BlockSparse:
    if branch != "compressed" or not isinstance(blocks.mask, Intervals):
        return blocks
    return replace(blocks, mask=Intervals(blocks.mask.bounds + by))


register_mutant(
    "compressed_block_seen_late",
    "A query sees a compressed block from the first token of the next block on.",
    "invented, after MSLK: masked iff j · size > i, with >= and the end of the block",
    lists=lambda blocks, branch, backward: _bounds_moved(-1, blocks, branch),
)

register_mutant(
    "compressed_branch_not_causal",
    "The compressed branch sees a block more than it may: tokens that come later.",
    "MSLK's tolerance of the forward pass lets a compressed branch without causality through",
    lists=lambda blocks, branch, backward: _bounds_moved(1, blocks, branch),
)


register_mutant(
    "window_lost_in_backward",
    "The backward pass of the window is that of causal attention: wrong where the window is shorter than the sequence.",
    "MSLK 92bc596, fixed in d80bbd7: is_causal=causal and window_size is None, always False",
    width_of_window=lambda window, backward: 1 << 29 if backward else window,
)

register_mutant(
    "window_one_key_wider",
    "The window has W + 1 keys.",
    "invented, after a window whose width counts the keys to its left and not the query's own",
    width_of_window=lambda window, backward: window + 1,
)


@triton.jit
def _swapped(branch: tl.constexpr):
    return (4 - branch) % 3


register_mutant(
    "gates_swapped",
    "The gates of two branches are exchanged.",
    "invented, after the order of MSLK's gates: compressed, selected, window",
    gate_row=_swapped,
)


@triton.jit
def _without_its_slope(rGate, rGradient):
    return rGradient * rGate


register_mutant(
    "gate_gradient_without_slope",
    "The gradient of a gate's logit lacks 1 - g.",
    "invented, after dlogit = dg · g · (1 - g)",
    logit_gradient=_without_its_slope,
)


@triton.jit
def _whole(rMean, count):
    return rMean


register_mutant(
    "mean_gradient_not_divided",
    "Every token of a block has the whole gradient of its mean, not its share.",
    "invented, after MSLK: dK[i] = dC[i // size] / size, without the division",
    share_of_mean=_whole,
)


@triton.jit
def _by_its_size(start, size, rows):
    return size


register_mutant(
    "last_mean_by_the_full_size",
    "The last block's sum, and the last tile's, is divided by the size of a whole one.",
    "invented, after padding with zeros to a multiple of the block",
    divisor=_by_its_size,
)


def _transposed(mean: Tensor, weight: Tensor | None) -> Tensor:
    return mean if weight is None else torch.einsum("bnhd,hed->bnhe", mean, weight.float())


register_mutant(
    "weight_transposed",
    "Compressed keys and values are multiplied by the transposed weight.",
    "invented, after MSLK: einsum bnhd,hde->bnhe, with hed for hde",
    project=_transposed,
)


def _gradient_transposed(grad: Tensor, mean: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
    of_mean, of_weight = project_backward(grad, mean, weight)
    return of_mean, None if of_weight is None else of_weight.mT.contiguous()


register_mutant(
    "weight_gradient_transposed",
    "The gradient of a weight is transposed; all else is right.",
    "invented, after MSLK: dW = einsum bnhd,bnhe->hde, with hed for hde",
    project_backward=_gradient_transposed,
)


@triton.jit
def _rounded(rSum, rPart, DTYPE: tl.constexpr, INTERPRETED: tl.constexpr):
    return widen(round_to(rSum + rPart, DTYPE, INTERPRETED))


register_mutant(
    "gradients_added_in_half",
    "The sum of the branches' gradients is rounded after each of them.",
    "MSLK pull request 296, fixed in 309: in-place sums in bfloat16",
    add=_rounded,
)


def _round_robin(q_mean: Tensor, heads_kv: int) -> Tensor:
    batch, tiles, heads_q, dim = q_mean.shape
    group = heads_q // heads_kv
    return q_mean.view(batch, tiles, group, heads_kv, dim).permute(0, 3, 1, 2, 4).reshape(batch, heads_kv, -1, dim)


register_mutant(
    "scores_of_other_kv_heads",
    "Query heads are scored against KV heads round-robin: other blocks are selected wherever 1 < heads_kv < heads_q.",
    "invented, after MSLK: reshape(B, nt, H_kv, g, D), with (B, nt, g, H_kv, D)",
    folded=_round_robin,
)

register_mutant(
    "strict_mean_of_the_whole_tile",
    "Under strict causality a tile selects by the mean of all its queries: its first ones depend on later tokens.",
    "invented, after MSLK, where no rule is strict",
    mean_shift=lambda tile, causal: 0,
)


register_mutant(
    "all_scores_at_once",
    "The scores of all tiles are made at one time: answers are right, and memory grows with the square of the length.",
    "MSLK: dense scores, out of memory at 64K tokens, before its scores were tiled",
    tiles_at_once=lambda scores_of_a_tile: 1 << 30,
)


def _over_whole_groups(score: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    pad = (0, -score.shape[-1] % GROUP)
    kept = torch.nn.functional.pad(torch.where(counted, score, 0.0), pad).unflatten(-1, (-1, GROUP))
    number = torch.nn.functional.pad(counted.to(torch.float32), pad).unflatten(-1, (-1, GROUP)).sum(-1)
    return kept.sum(-1) / GROUP, number > 0


register_mutant(
    "last_group_by_the_full_size",
    "The score of the last group of compressed blocks is divided by the blocks of a whole group.",
    "invented, after padding with zeros to a multiple of the group",
    group_scores=_over_whole_groups,
)


register_mutant(
    "row_offset_wraps",
    "Forward pass of all branches: the offset of a tile of keys is computed in 32 bits, and wraps at 2 ** 31 elements.",
    "Meta's NSA at 2,000,000 tokens: row index times stride in int32, cudaErrorIllegalAddress",
    attention=injections_for("blocksparse!key_offset_wraps").forward,
)
