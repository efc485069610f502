"""Parameters of flash_attn.cute's functions that a problem does not ask for, given so that the answer stays its own.

Where the interface's words leave a meaning open, a call is one that every reading answers alike; what the source of
4.0.0b36 says is beside it (files of flash_attn/cute):

flags     `causal` or `window_size` beside a mask_mod. No word says whether both count or one. The source drops the
          flags (interface.py:438). So the mask_mod says the whole mask, the flags included.
sink      `learnable_sink` adds exp(sink) to each row's sum. No word says what -inf does; -1e4 adds 0 in float32. A row
          without keys would have LSE = sink, so every row has keys. "undone": one that counts, in float32, and is taken
          out of the answer again (sinks.py); that LSE has it too is what the source says (softmax.py:47). Where the
          answer may be exact it adds nothing either.
scores    softcap as a score_mod of FlashAttention-4's own (utils.py:189) and its derivative; both at once it refuses.
scalars   a mask_mod that reads its bounds from `aux_scalars`, of the compiler's Int32: `tuple` is all its words say.
function  flash_attn_varlen_func for sequences that are equally long, with seqused_q and seqused_k.
hints     `max_seqlen_q` and `max_seqlen_k` left out, or `min_seqlen_k` given: bounds, not lengths.
keys      K and V in pages in no order; tokens past a sequence's end hold PADDING, which the words allow. They do not
          say that pages are for inference only; the source's backward pass knows no page_table: forward is asked alone.
metadata  `disable_scheduler_metadata`, which changes no answer.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fuzz.targets.flash_attention_4.arguments import mask_options
from fuzz.targets.flash_attention_4.sinks import MOST_PAIRS
from oracles.masks import Causal, Full, Window
from oracles.problem import AnyProblem, dense_mask

EXTRAS: dict[str, tuple[str | int | bool, ...]] = {
    "flags": (False, True),
    "sink": (False, True, "undone"),
    "scores": ("softcap", "score_mod"),
    "function": ("auto", "varlen"),
    "hints": ("max", "none", "min"),
    "keys": ("dense", "paged"),
    "metadata": (True, False),
}
HD256 = frozenset({"sink", "scores", "keys"})  # what kernels of head dim 256 for sm_100 do not take
SINK = -1e4
PAGE = 128  # tokens
PADDING = 100.0
OPEN = 1 << 30  # a bound that every position keeps


def extras_for(problem: AnyProblem) -> list[dict[str, Any]]:
    """Options that a session adds to those of a case: each extra that the problem allows, then each two."""
    singles = [{name: value} for name, values in EXTRAS.items() for value in values[1:]]
    able = [one for one in singles if not misplaced(problem, one)]
    pairs = [one | other for one, other in combinations(able, 2) if not one.keys() & other.keys()]
    return able + [pair for pair in pairs if not misplaced(problem, pair)]


def fits(options: dict[str, Any], extra: dict[str, Any]) -> bool:
    """True if a case with these options can have the extra too."""
    if options["mask"] in ("options", "scalars") and "flags" in extra:
        return False
    return "keys" not in extra or (options["mask"] != "blocks" and "scores" not in extra)


def misplaced(problem: AnyProblem, options: dict[str, Any]) -> str:
    """Reason why these extras cannot be given to the problem without another answer, or at all; "": none."""
    p, given = problem, {name: values[0] for name, values in EXTRAS.items()} | options
    said = mask_options(p)
    varlen = p.layout == "packed" or p.ragged or given["function"] == "varlen"
    launches = sum(p.lengths_q) > 0 and sum(p.lengths_k) > 0
    reasons = {
        "flags=True needs a mask that causal or window_size says": given["flags"] and not said,
        "sink=True needs a key for every row": given["sink"] and not (launches and _every_row_has_keys(p)),
        "sink=undone works out LSE, of few tokens": given["sink"] == "undone" and p.pairs > MOST_PAIRS,
        "scores=score_mod is about a softcap": given["scores"] == "score_mod" and not p.softcap,
        "function=varlen is about equally long padded sequences": given["function"] == "varlen"
        and (p.layout == "packed" or p.ragged),
        "hints are about packed sequences": given["hints"] != "max" and p.layout != "packed",
        "metadata=False is about flash_attn_varlen_func": not given["metadata"] and not varlen,
        "keys=paged is forward only": given["keys"] == "paged" and p.backward,
        "keys=paged needs used lengths": given["keys"] == "paged" and not (launches and varlen),
        "keys=paged needs head dims in steps of 16": given["keys"] == "paged" and (p.dim % 16 or p.dim_v % 16),
    }
    return next((why for why, wrong in reasons.items() if wrong), "")


def bounds_of(problem: AnyProblem) -> tuple[int, int] | None:
    """(left, right) such that query q sees the keys from q - left to q + right, for masks that are just that; else
    None. Bounds are one for all sequences, so a mask aligned at the bottom right needs one difference of lengths."""
    mask = problem.mask
    shifts = {n_k - n_q for n_q, n_k in zip(problem.lengths_q, problem.lengths_k, strict=True)}
    match mask:
        case Full():
            return OPEN, OPEN
        case Causal():
            left, right = None, 0  # type: tuple[int | None, int | None]
        case Window():
            left, right = mask.left, mask.right
        case _:
            return None
    if mask.align == "bottom_right" and len(shifts) > 1:
        return None
    shift = shifts.pop() if mask.align == "bottom_right" else 0
    return OPEN if left is None else left - shift, OPEN if right is None else right + shift


def sink(problem: AnyProblem, device: torch.device | str, kind: str | bool) -> Tensor:
    """learnable_sink (heads_q,), which adds nothing; of the dtype of the one that counts where that takes its place."""
    dtype = torch.float32 if kind == "undone" else problem.torch_dtype
    return torch.full((problem.heads_q,), SINK, dtype=dtype, device=device)


def page_table(problem: AnyProblem, device: torch.device | str) -> Tensor:
    """int32 (batch, pages of the longest sequence): every page once, in no order."""
    pages = -(-problem.len_k // PAGE)
    count = problem.batch * pages
    order = torch.arange(count, device=device) * _coprime(count) % count
    return order.to(torch.int32).view(problem.batch, pages)


def paged(x: Tensor, problem: AnyProblem, table: Tensor) -> Tensor:
    """K or V as pages (pages, PAGE, heads_kv, dim).

    x  padded (batch, len_k, heads_kv, dim), or packed (total_k, heads_kv, dim)
    """
    if problem.layout == "packed":
        parts = x.split(list(problem.lengths_k))
        x = torch.stack([F.pad(part, (0, 0, 0, 0, 0, problem.len_k - len(part)), value=PADDING) for part in parts])
    whole = F.pad(x, (0, 0, 0, 0, 0, table.shape[1] * PAGE - x.shape[1]), value=PADDING)
    pages = whole.reshape(-1, PAGE, *x.shape[2:])
    made = torch.empty_like(pages)
    made[table.flatten().long()] = pages
    return made


def _coprime(count: int) -> int:
    return next(n for n in (7, 11, 13, 17, 19, 1) if count % n or n == 1)


@lru_cache(maxsize=16)
def _every_row_has_keys(p: AnyProblem) -> bool:
    if p.layout == "packed" or not p.ragged:
        return all(_rows(p, b) for b in range(p.batch))
    return min(p.lengths_q) == p.len_q and all(_rows(p, b) for b in range(p.batch))


def _rows(p: AnyProblem, b: int) -> bool:
    kept = dense_mask(p)
    row = kept[b if kept.shape[0] > 1 else 0, :, : p.lengths_q[b], : p.lengths_k[b]]
    return bool(row.any(-1).all())
