"""Keys in two calls: even tiles of keys in one, odd ones in the other, put together by their LSEs.

Each call's LSE has a gradient, which nothing else asks the kernel for (see merge_by_lse.py); each skips every other
tile of keys.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzz.core.case import Case
from fuzz.targets import merge_by_lse
from oracles.problem import AnyProblem

KEYS = ("whole", "split")  # values of the option `keys`
TILE = 64  # keys; a multiple of every word and tile of kernels.dynamic_mask


def useful(problem: AnyProblem, mask: object) -> bool:
    """True if both calls have keys, their LSEs a gradient, and no entry of a bias gets one from both. mask: how it is
    said."""
    by_column = problem.bias is None or problem.bias.cols
    return problem.backward and problem.len_k > TILE and mask not in ("bias", "columns") and by_column


def inexact(case: Case) -> bool:
    """True if the case has its keys in two calls, and inputs whose answer may be exact: a sum by way of logarithms is
    not."""
    return case.variant.get("keys") == "split" and merge_by_lse.exact(case)


def parts_of(given: dict[str, Any], len_k: int, device: torch.device) -> list[dict[str, Any]]:
    """The arguments `given` of a call, once with the even tiles of keys in its mask and once with the odd ones."""
    from kernels.dynamic_mask import pack_mask

    mask = given.get("mask")
    tile = torch.arange(len_k, device=device) // TILE
    parts = []
    for parity in (0, 1):
        seen = (tile % 2 == parity)[None, None, None]
        if mask is not None:
            seen = mask & (pack_mask(seen) if mask.dtype == torch.int32 else seen)
        parts.append(given | {"mask": seen})
    return parts
