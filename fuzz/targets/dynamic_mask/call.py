"""One case as a call of kernels.dynamic_mask: the mask by a flag, as bools, as packed words, by -inf in the bias, by
bools and -inf in turn, by a flag and -inf in the bias's columns, or as `top_mask` selects it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fuzz.targets.dynamic_mask import sequences_alone, two_calls
from fuzz.targets.mask_tensors import AXES, ROOM
from fuzz.targets.options import Options
from oracles.masks import (
    Align,
    And,
    Causal,
    Full,
    Mask,
    Not,
    PerBatch,
    Prefix,
    TopK,
    kinds,
    top_scores,
    varies_by_batch,
)
from oracles.problem import AnyProblem, cumulative, dense_mask

SHAPES = ("plain", "narrow", "expanded", "whole", "padded", "turned")
OPTIONS = Options(
    mask=("auto", "bool", "bits", "both", "bias", "alternating", "selected"),
    shape=SHAPES,
    hidden=("kept", "nan", "keys"),
    splits=(0, 1, 2, 3),
    deterministic=(True, False),
    keys=two_calls.KEYS,
    sequences=sequences_alone.SEQUENCES,
)
BY_BIAS = ("bias", "alternating", "columns")  # ways to say the mask of which -inf in the bias is a part
TILE = 64  # of kernels.dynamic_mask.config
WORD = 32  # kernels.dynamic_mask.config.WORD, whose import would be Triton's too


def direction(mask: Mask) -> Align | None:
    """The alignment of a causal mask that `mask` is, or is a part of together with others."""
    match mask:
        case Causal(align):
            return align
        case TopK(of=of):
            return direction(of)
        case And(parts):
            return next((found for part in parts if (found := direction(part)) is not None), None)
    return None


def by_a_flag(problem: AnyProblem) -> bool:
    """True if the flag `causal`, or nothing, says the problem's mask: padding is said by a mask."""
    hidden = problem.layout == "padded" and problem.ragged
    return isinstance(problem.mask, Full | Causal) and not hidden


def says(problem: AnyProblem) -> tuple[str, ...]:
    """The ways to say the mask, beside the default. 'both': a flag, and a tensor that has the flag's zeros too. 'bias':
    -inf in the bias, which needs a head of its own for each mask. 'alternating': -inf in the bias for even rows, bools
    for odd ones. 'selected': the kernel's own `top_mask` makes it, of the scores that a mask of kind top_k has, once
    for each KV head."""
    ways: tuple[str, ...] = ("bool", "bits")
    ways += ("selected",) * selectable(problem) + ("both",) * _flag_holds(problem)
    shared = problem.bias is not None and problem.bias.kv_heads and problem.group > 1
    joins = problem.bias is not None and not by_a_flag(problem) and not (shared and "per_head" in kinds(problem.mask))
    return ways + ("bias", "alternating") * joins


def way_of(problem: AnyProblem, given: dict[str, Any]) -> str:
    """How the mask is said: by a flag and the bias where nothing is told, and both can say it together."""
    return "columns" if given["mask"] == "auto" and hides_columns(problem) else str(given["mask"])


def hides_columns(problem: AnyProblem) -> bool:
    """True if the mask is one that a flag says, and one of keys alone, as padding to the left makes it, and -inf in the
    bias can hide these keys."""
    mask, bias = problem.mask, problem.bias
    if bias is None or not bias.cols or (problem.layout == "padded" and problem.ragged):
        return False
    if not (isinstance(mask, And) and len(mask.of) == 2 and isinstance(mask.of[0], Full | Causal)):
        return False
    return _of_keys(mask.of[1]) and (bias.batch or not varies_by_batch(mask.of[1]))


def _of_keys(mask: Mask) -> bool:
    match mask:
        case Not(part):
            return _of_keys(part)
        case PerBatch(every):
            return all(map(_of_keys, every))
    return isinstance(mask, Prefix)


def selectable(problem: AnyProblem) -> bool:
    """True if the problem's mask is one that `top_mask` makes: of keys that are the same for all sequences."""
    mask = problem.mask
    return isinstance(mask, TopK) and isinstance(mask.of, Full | Causal) and not problem.ragged


def _flag_holds(problem: AnyProblem) -> bool:
    """True if the flag masks nothing that the mask keeps. 'bottom_right' counts from the padded lengths, the mask of a
    problem from each sequence's own."""
    align = direction(problem.mask)
    if align != "bottom_right" or problem.layout == "packed":
        return align is not None
    shift = problem.len_k - problem.len_q
    return all(n_k - n_q <= shift for n_q, n_k in zip(problem.lengths_q, problem.lengths_k, strict=True))


def useful(problem: AnyProblem, given: dict[str, Any], ways: tuple[str, ...] | None = None) -> bool:
    """True if the problem can be said so. ways: `says`, where that is known."""
    ways = says(problem) if ways is None else ways
    given = given | {"mask": way_of(problem, given)}
    told = given["mask"] != "auto" or not by_a_flag(problem)
    if given["mask"] not in ("auto", "columns", *ways) or (given["shape"] != "plain" and not (told or problem.bias)):
        return False
    if given["hidden"] != "kept" and (problem.bias is None or given["mask"] in BY_BIAS or not told):
        return False
    if given["hidden"] == "keys" and not hides_keys(problem, given):
        return False
    if given["keys"] == "split" and not two_calls.useful(problem, given["mask"]):
        return False
    alone = given["sequences"] == "alone"
    if alone and not (given["keys"] == "whole" and sequences_alone.useful(problem, given["mask"])):
        return False
    return problem.backward or (not given["splits"] and given["deterministic"])


def hides_keys(problem: AnyProblem, given: dict[str, Any]) -> bool:
    """True if -inf in the bias can hide the keys that no query sees, and a mask tensor the others."""
    said = not by_a_flag(problem) and given["mask"] in ("auto", "bool", "bits")
    return problem.bias is not None and problem.bias.cols and said and given["keys"] == "whole"


def arguments(problem: AnyProblem, bias: Tensor | None, device: torch.device, given: dict[str, Any]) -> dict[str, Any]:
    """Every argument of `dynamic_mask_attention` after query, key and value; differentiable in bias."""
    p, how = problem, way_of(problem, given)
    found: dict[str, Any] = {"scale": p.scale, "softcap": p.softcap}
    if (how == "auto" and by_a_flag(p)) or how in ("both", "columns"):
        found["causal"] = direction(p.mask)
    mask = None if how == "auto" and by_a_flag(p) else dense_mask(p, device)
    if how == "columns" and mask is not None and bias is not None:
        bias, mask = bias.masked_fill(unseen_keys(mask, bias), float("-inf")), None
    if bias is not None:
        if mask is not None and (how in BY_BIAS or given["hidden"] == "nan"):
            seen = _heads(mask, bias)
            if how == "alternating":
                by_bools = torch.arange(p.len_q, device=device)[:, None] % 2 == 1
                seen, mask = seen | by_bools, mask | ~by_bools
            bias = torch.where(seen, bias, float("-inf") if how in BY_BIAS else float("nan"))
        elif mask is not None and given["hidden"] == "keys":
            unseen = unseen_keys(mask, bias)
            bias = bias.masked_fill(unseen, float("-inf"))
            mask = mask | (unseen if unseen.shape[1] in (1, mask.shape[1]) else unseen.repeat_interleave(p.group, 1))
        found["bias"] = shaped(bias, p, given["shape"], narrow=False)
    if mask is not None and how == "bits":
        found["mask"] = _words(mask, p, given["shape"])
    elif mask is not None and how != "bias":
        found["mask"] = shaped(_selected(p, device) if how == "selected" else mask, p, given["shape"])
    if p.layout == "packed":
        for name, lengths in (("q", p.lengths_q), ("k", p.lengths_k)):
            found[f"cu_seqlens_{name}"] = torch.tensor(cumulative(lengths), dtype=torch.int32, device=device)
            found[f"max_seqlen_{name}"] = max(lengths)
    if p.backward:
        found |= {"num_splits": given["splits"], "deterministic": given["deterministic"]}
    return found


def calls(
    problem: AnyProblem, bias: Tensor | None, device: torch.device, given: dict[str, Any]
) -> list[dict[str, Any]]:
    """`arguments` of the one call that a case is, or of both where its keys are in two."""
    found = arguments(problem, bias, device, given)
    return two_calls.parts_of(found, problem.len_k, device) if given["keys"] == "split" else [found]


def unseen_keys(mask: Tensor, bias: Tensor) -> Tensor:
    """bool (batch or 1, bias's heads or 1, 1, len_k): keys that the mask hides from every query that adds this bias."""
    unseen = ~mask.any(2, keepdim=True)
    for axis in (0, 1):
        if bias.shape[axis] == 1:
            unseen = unseen.all(axis, keepdim=True)
    heads = bias.shape[1]
    return unseen.unflatten(1, (heads, -1)).all(2) if unseen.shape[1] > heads else unseen


def shaped(plane: Tensor, problem: AnyProblem, how: str, *, narrow: bool = True, columns: int | None = None) -> Tensor:
    """The same mask, or bias, in another shape or layout; 4-D always, differentiable.

    how      plain: axes of 1 where nothing varies; narrow: also those along which the mask is the same; expanded: all
             axes in full, with stride 0; whole: the same, in memory; padded: whole, with ROOM unused columns; turned:
             whole, with the rows of a column beside one another
    columns  of a whole plane, where that is not len_k: words
    """
    heads = problem.heads_q if plane.shape[1] == 1 else plane.shape[1]  # a bias per KV head keeps those
    full = (problem.batch, heads, problem.len_q, problem.len_k if columns is None else columns)
    if how == "plain":
        return plane
    if how == "narrow":
        if not narrow:
            return plane
        axes = AXES[:3] if columns is not None else AXES
        return plane[tuple(slice(0, 1) if a in axes and _same(plane, a) else slice(None) for a in AXES)]
    whole = plane.expand(full)
    if how == "expanded":
        return whole
    if how == "turned":
        return whole.mT.contiguous().mT
    return F.pad(whole, (0, ROOM))[..., : full[3]] if how == "padded" else whole.contiguous()


def mixed_tiles(problem: AnyProblem) -> float:
    """0 where all tiles of 64 x 64 scores hold a pair that counts, or none does; 1 where half of them do."""
    mask = dense_mask(problem)
    if not mask.numel():
        return 0.0
    pads = (0, -mask.shape[3] % TILE, 0, -mask.shape[2] % TILE)
    tiles = F.pad(mask, pads).unflatten(3, (-1, TILE)).unflatten(2, (-1, TILE)).any(5).any(3)
    kept = float(tiles.float().mean())
    return 2 * min(kept, 1 - kept)


def _words(mask: Tensor, problem: AnyProblem, how: str) -> Tensor:
    """The mask in words of 32 keys, in that shape: a packed mask cannot be broadcast over keys. Bits beyond len_k do
    not matter: they are 1 in the last word of a row that has any other."""
    from kernels.dynamic_mask import pack_mask

    columns = -(-problem.len_k // WORD)
    words = pack_mask(mask.expand(*mask.shape[:3], problem.len_k))
    if tail := tail_bits(problem):
        words[..., -1] |= torch.where(words[..., -1] != 0, tail, 0)
    return shaped(words, problem, how, columns=columns)


def tail_bits(problem: AnyProblem) -> int:
    """The bits of a row's last word that are beyond len_k, as int32; 0 where there are none."""
    inside = problem.len_k % WORD
    return -(1 << inside) if inside else 0


def _selected(problem: AnyProblem, device: torch.device) -> Tensor:
    """The mask (batch, heads_kv, len_q or 1, len_k) that `top_mask` makes of the scores of a mask of kind top_k."""
    from kernels.dynamic_mask import top_mask

    p, mask = problem, problem.mask
    assert isinstance(mask, TopK)
    scores = [top_scores(mask, batch, head, p.len_k, device) for batch in range(p.batch) for head in range(p.heads_kv)]
    ranks = torch.stack(scores).argsort(-1).argsort(-1).view(p.batch, p.heads_kv, 1, p.len_k)
    return top_mask(ranks.float(), mask.width, p.len_q, causal=direction(mask))


def _heads(mask: Tensor, bias: Tensor) -> Tensor:
    """The mask beside a bias that has fewer heads than it: all that any of the query heads of a bias's head keeps."""
    heads, fewer = mask.shape[1], bias.shape[1]
    if fewer in (1, heads) or heads == 1:
        return mask
    return mask.unflatten(1, (fewer, heads // fewer)).any(2)


def _same(mask: Tensor, axis: int) -> bool:
    return mask.shape[axis] > 0 and bool((mask == mask.narrow(axis, 0, 1)).all())
