"""The selection as an answer of its own: scores in float64, the selection that follows from them, and what is wrong
with a given one.

NOTE [score's rounding]: a kernel may store the mean query, the mean key and its product with W_k each in the inputs'
dtype (unit roundoff u) and sum in fp32 on tensor cores (each step off by 2^-22 at most). To first order, and at worst,
    |error of s| <= |scale| * sum over dim of (dQ |K^| + |Q^| dK),
    dQ = u |Q^| + f mean|Q|,  dK = u |K^| + (u + f) mean|K| |W_k| (without W_k: u |K^| + f mean|K|),
with f the relative error of an fp32 sum of as many terms, of which f (|Q^| . |K^|) is added for the last sum. The
selection is right if some scores within that of the true ones have it as their top: the least of what was chosen may
not be below the most of what was not by more than both errors. Of blocks whose tokens are the same bit for bit the
lower index must be chosen first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oracles.finding import Finding, Location
from oracles.native_sparse.pooling import block_means, group_means, mean_queries
from oracles.native_sparse.problem import GROUP, NativeSparse
from oracles.native_sparse.rules import allowed_blocks, allowed_groups, mean_rows
from oracles.problem import sequence_view

STEP = 2.0**-22  # relative error of one step of an fp32 sum on tensor cores
TITLES = {"blocks": "block", "groups": "group of compressed blocks"}


@dataclass(frozen=True)
class Scores:
    """Scores of one sequence and of what a tile may choose among: blocks, or groups.

    scores, error  (heads, tiles, count), fp64: the true scores and a bound of what rounding does to them
    allowed        bool (tiles, count)
    same           int64 (heads, count): equal numbers for those that hold the same tokens
    most           how many a tile may choose
    """

    scores: Tensor
    error: Tensor
    allowed: Tensor
    same: Tensor
    most: int

    def best(self) -> Tensor:
        """The true selection: bool (heads, tiles, count). Equal scores: the lower index."""
        masked = torch.where(self.allowed, self.scores, -torch.inf)
        order = masked.sort(dim=-1, descending=True, stable=True).indices[..., : self.most]
        return torch.zeros_like(masked, dtype=torch.bool).scatter_(-1, order, True) & self.allowed


def scores_of(p: NativeSparse, q: Tensor, k: Tensor, w_k: Tensor | None) -> dict[str, Scores]:
    """Scores by name of the choice, 'blocks' and where it is one 'groups', of one sequence of at least one token.

    q (heads_q, length, dim), k (heads_kv, length, dim), w_k (heads_kv, dim, dim); any dtype
    """
    length = q.shape[-2]
    u = torch.finfo(p.torch_dtype).eps / 2
    q, k = q.double(), k.double()
    mean_q, mean_k = mean_queries(p, q), block_means(k, p.compress_block_size)
    most_rows = max(stop - start for start, stop in mean_rows(p, length))
    error_q = u * mean_q.abs() + most_rows * STEP * mean_queries(p, q.abs())
    rough = block_means(k.abs(), p.compress_block_size) * (p.compress_block_size * STEP)
    if w_k is None:
        error_k = u * mean_k.abs() + rough
    else:
        weight = w_k.double()
        error_k = (u * mean_k.abs() + rough) @ weight.abs() + p.dim * STEP * (mean_k.abs() @ weight.abs())
        mean_k = mean_k @ weight
        error_k = error_k + u * mean_k.abs()
    mean_k, error_k = (x.repeat_interleave(p.group, 0).mT for x in (mean_k, error_k))
    scale = p.scale_value
    scores = scale * (mean_q @ mean_k)
    size = mean_q.abs() @ mean_k.abs()
    error = abs(scale) * (error_q @ (mean_k.abs() + error_k) + mean_q.abs() @ error_k + (p.dim + 2) * STEP * size)
    allowed = allowed_blocks(p, length, q.device)
    same = _same_tokens(p, k, w_k)
    found = {"blocks": Scores(scores, error, allowed, same, p.num_selected_blocks)}
    if p.selects_groups(length):
        counted = allowed if p.causal == "strict" else torch.ones_like(allowed)
        means = group_means(scores, counted)
        errors = group_means(error + GROUP * STEP * scores.abs(), counted)
        apart = torch.arange(means.shape[-1], device=q.device).expand(p.heads_q, -1)
        assert p.num_cmp_selected_blocks is not None
        limit = p.num_cmp_selected_blocks
        found["groups"] = Scores(means, errors, allowed_groups(p, length, q.device), apart, limit)
    return found


def sequences(p: NativeSparse, tensors: Mapping[str, Tensor | None]) -> Iterator[tuple[int, int, dict[str, Scores]]]:
    """(batch, length, scores) of every sequence that has tokens. tensors: q, k and w_k, in the problem's layout."""
    for b, length in enumerate(p.lengths):
        if length:
            q, k = (sequence_view(p, name, _there(tensors, name), b) for name in ("q", "k"))
            yield b, length, scores_of(p, q, k, tensors.get("w_k"))


def true_selection(p: NativeSparse, tensors: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    """The choices of `p.choices`, as int32 lists of the shapes of `shapes(p)`."""
    sizes = p.shapes()
    device = _there(tensors, "q").device
    found = {name: torch.full(sizes[name], -1, dtype=torch.int32, device=device) for name in p.choices}
    for b, length, scores in sequences(p, tensors):
        for name, each in scores.items():
            listed = as_lists(each.best(), found[name].shape[-1])
            found[name][b, :, : p.tiles(length), : listed.shape[-1]] = listed
    return found


def as_lists(chosen: Tensor, most: int) -> Tensor:
    """bool (…, count) to int32 (…, most) of the indices that are True, ascending, then -1."""
    count = chosen.shape[-1]
    index = torch.where(chosen, torch.arange(count, device=chosen.device), count)
    listed = index.sort(-1).values[..., :most]
    return torch.where(listed == count, -1, listed).int()


def as_flags(listed: Tensor, count: int) -> Tensor:
    """Lists of `as_lists` as bool (…, count)."""
    flags = torch.zeros((*listed.shape[:-1], count + 1), dtype=torch.bool, device=listed.device)
    return flags.scatter_(-1, torch.where(listed < 0, count, listed).long(), True)[..., :count]


def chosen_of(p: NativeSparse, choices: Mapping[str, Tensor], b: int) -> tuple[Tensor, Tensor | None]:
    """Blocks and groups of sequence `b` as bool (heads, tiles, count); groups None where all are seen."""
    length = p.lengths[b]
    tiles = slice(0, p.tiles(length))
    blocks = as_flags(choices["blocks"][b, :, tiles], p.blocks(length))
    if not p.selects_groups(length):
        return blocks, None
    return blocks, as_flags(choices["groups"][b, :, tiles], p.groups(length))


def malformed(p: NativeSparse, choices: Mapping[str, Tensor]) -> list[Finding]:
    """Findings of lists that are no selection at all: an index out of range, or an order that is not ascending."""
    found = []
    for name in p.choices:
        lists, none = choices[name].cpu(), {"blocks": p.blocks, "groups": p.groups}[name]
        for b, length in enumerate(p.lengths):
            if name == "groups" and not p.selects_groups(length):
                continue
            there, past = lists[b, :, : p.tiles(length)], lists[b, :, p.tiles(length) :]
            if bool((past != -1).any()):
                found.append(_finding(p, name, b, (0, p.tiles(length), 0), "a list where there is no tile", "padding"))
            used = there >= 0
            later = ~used[..., 1:] | (used[..., :-1] & (there[..., 1:] > there[..., :-1]))
            wrong = ((there >= none(length)) | (there < -1)).any(-1) | ~later.all(-1)
            if bool(wrong.any()):
                h, t = (int(at[0]) for at in wrong.nonzero(as_tuple=True))
                what = f"the list {there[h, t].tolist()}, which must ascend from 0 to {none(length) - 1}, then be -1"
                found.append(_finding(p, name, b, (h, t, int(wrong.sum())), what, "list"))
    return found


def wrong_choices(
    p: NativeSparse, tensors: Mapping[str, Tensor | None], choices: Mapping[str, Tensor]
) -> list[Finding]:
    """Findings of well-formed lists that no scores within the rounding bound of the true ones have as their top."""
    found = []
    for b, length, scores in sequences(p, tensors):
        blocks, groups = chosen_of(p, choices, b)
        for name, each in scores.items():
            chosen = blocks if name == "blocks" else groups
            assert chosen is not None
            found += _judged(p, name, b, length, each, chosen)
    return found


def differing(runs: Sequence[Mapping[str, Tensor]]) -> list[Finding]:
    """Findings of repeats that have not all chosen the same."""
    found = []
    for name, first in runs[0].items():
        others = sum(not torch.equal(first, run[name]) for run in runs[1:])
        if others:
            message = f"the selection is not deterministic: {others} of {len(runs) - 1} repeats chose other {name}"
            numbers = {"differs": float(others), "repeats": float(len(runs) - 1)}
            found.append(Finding("determinism", "nondeterministic", message, name, Location(), numbers))
    return found


def _judged(p: NativeSparse, name: str, b: int, length: int, right: Scores, chosen: Tensor) -> list[Finding]:
    """Findings of one sequence; the first rule that is broken anywhere is reported."""
    allowed = right.allowed.expand_as(chosen)
    forbidden = chosen & ~allowed
    if bool(forbidden.any()):
        at = forbidden.nonzero()[0].tolist()
        what = f"{TITLES[name]} {at[2]}, which is not allowed to it"
        return [_finding(p, name, b, (at[0], at[1], int(forbidden.any(-1).sum())), what, "not allowed")]
    due = allowed.sum(-1).clamp_max(right.most)
    counts = chosen.sum(-1)
    if bool((counts != due).any()):
        h, t = (int(at[0]) for at in (counts != due).nonzero(as_tuple=True))
        what = f"{int(counts[h, t])} {TITLES[name]}s, must be {int(due[h, t])}"
        return [_finding(p, name, b, (h, t, int((counts != due).sum())), what, "count")]
    least = torch.where(chosen, right.scores + right.error, torch.inf)
    left = allowed & ~chosen
    most = torch.where(left, right.scores - right.error, -torch.inf)
    worse = least.amin(-1) < most.amax(-1)
    if bool(worse.any()):
        h, t = (int(at[0]) for at in worse.nonzero(as_tuple=True))
        low, high = int(least[h, t].argmin()), int(most[h, t].argmax())
        s, e = right.scores[h, t], right.error[h, t]
        what = (
            f"{TITLES[name]} {low} of score {float(s[low]):.6g}, not {high} of score {float(s[high]):.6g}; rounding "
            f"explains {float(e[low] + e[high]):.2g}"
        )
        return [_finding(p, name, b, (h, t, int(worse.sum())), what, "not the top")]
    return _ties(p, name, b, right, chosen, left)


def _ties(p: NativeSparse, name: str, b: int, right: Scores, chosen: Tensor, left: Tensor) -> list[Finding]:
    """Findings where of two that hold the same tokens the higher index was chosen, and the lower not."""
    for h in range(chosen.shape[0]):
        same = right.same[h]
        kinds = int(same.max()) + 1
        index = torch.arange(len(same), device=same.device).expand(chosen.shape[1], -1)
        kind = same.expand(chosen.shape[1], -1)
        none = torch.full((chosen.shape[1], kinds), len(same), device=same.device)
        first = none.scatter_reduce(1, kind, torch.where(left[h], index, len(same)), "amin")
        last = torch.full_like(none, -1).scatter_reduce(1, kind, torch.where(chosen[h], index, -1), "amax")
        wrong = last > first
        if bool(wrong.any()):
            t, which = wrong.nonzero()[0].tolist()
            low, high = int(first[t, which]), int(last[t, which])
            what = f"{TITLES[name]} {high}, not {low}, which holds the same tokens and so the same score"
            return [_finding(p, name, b, (h, t, int(wrong.any(-1).sum())), what, "tie")]
    return []


def _same_tokens(p: NativeSparse, k: Tensor, w_k: Tensor | None) -> Tensor:
    """int64 (heads_q, blocks): equal numbers for blocks of the same tokens; a block that is shorter is like no
    other."""
    size, length = p.compress_block_size, k.shape[-2]
    filled = torch.nn.functional.pad(k, (0, 0, 0, -length % size), value=torch.inf)
    rows = filled.unflatten(-2, (-1, size)).flatten(-2)
    each = [torch.unique(head, dim=0, return_inverse=True)[1] for head in rows]
    return torch.stack(each).repeat_interleave(p.group, 0)


def _finding(p: NativeSparse, name: str, b: int, at: tuple[int, int, int], what: str, pattern: str) -> Finding:
    """at: query head, tile, and the number of tiles, over all heads, of which it is true."""
    h, t, count = at
    rows = (t * p.q_tile, min((t + 1) * p.q_tile, max(p.lengths)))
    message = f"the selection is wrong: batch {b}, head {h}, tile {t} has chosen {what} ({count} such tiles)"
    return Finding("selection", "wrong", message, name, Location(b, h, rows, pattern=pattern), {"tiles": float(count)})


def _there(tensors: Mapping[str, Tensor | None], name: str) -> Tensor:
    found = tensors[name]
    assert found is not None
    return found
