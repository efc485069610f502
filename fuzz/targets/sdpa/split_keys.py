"""Keys in two calls of sdpa: the first half and the last, put together by their LSEs (see merge_by_lse.py)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fuzz.targets.merge_by_lse import lines
from oracles.problem import AnyProblem


def takes(problem: AnyProblem) -> bool:
    """True if the keys of a problem can be split: its mask is no flag's, and LSE and its gradient are exact enough.

    In half precision what lies between the two calls is rounded: O of each, and its gradient.
    """
    return problem.dtype == "float32" and problem.backward and problem.len_k > 1


def parts_of(k: Tensor, v: Tensor, mask: Tensor | None) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    """k, v (batch, heads_kv, len_k, dim) and attn_mask, whose last axis is len_k or 1, of both halves of the keys."""
    half = k.shape[2] // 2
    return [
        (k[:, :, part], v[:, :, part], mask if mask is None or mask.shape[-1] == 1 else mask[..., part])
        for part in (slice(0, half), slice(half, None))
    ]


def text(kernel: str, mask: Sequence[str], said: Sequence[str]) -> tuple[str, ...]:
    """Both calls of `kernel`, and what puts them together, as lines of a script. mask: 'attn_mask=…', or nothing."""
    given = [f"attn_mask=split({mask[0].partition('=')[2]}, part)"] if mask else []
    arguments = ", ".join(["q", "k[:, :, part]", "v[:, :, part]", *given, *said, "return_lse=True"])
    splits = ("split = lambda mask, part: mask if mask.shape[-1] == 1 else mask[..., part]",) if mask else ()
    parts = "parts = [call(part) for part in (slice(0, k.shape[2] // 2), slice(k.shape[2] // 2, None))]"
    return (*splits, f"call = lambda part: {kernel}({arguments})", parts, *lines())
