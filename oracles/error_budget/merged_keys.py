"""Keys in two calls: the roundings of an answer that is put together from two calls by their LSEs.

One call has the even blocks of `size` keys, the other the odd ones. The share of a call is its part of a row's sum of
exponentials. O is the sum of share * O of each call; a call's dO is share * dO, and its LSE has the gradient that makes
up for the rest. Rounded to the input dtype on the way are O of each call, its dO and its dQ.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class KeyPart:
    """One call's keys. Shapes (sequences, heads_q, rows, len_k) and, of rows, (sequences, heads_q, rows, 1).

    keys     1 for the keys of the call, else 0, (len_k,)
    weights  exponentials of the scores less the largest one of the call's own, before they are normalised
    probs    the call's P
    total    the sum that P is normalised by; 1 in rows without a key of the call
    share    part of the row's whole sum of exponentials
    """

    keys: Tensor
    weights: Tensor
    probs: Tensor
    total: Tensor
    share: Tensor


def key_parts(below: Tensor, total: Tensor, size: int) -> tuple[KeyPart, KeyPart]:
    """The even and the odd blocks of `size` keys. below: scores less their row's largest, -inf where masked; total: the
    sum of their exponentials, (…, 1)."""
    odd = torch.arange(below.shape[-1], device=below.device) // size % 2 == 1
    return _part(below, total, ~odd), _part(below, total, odd)


def _part(below: Tensor, whole: Tensor, keys: Tensor) -> KeyPart:
    scores = torch.where(keys, below, -torch.inf)
    top = scores.amax(-1, keepdim=True).nan_to_num(neginf=0.0)
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True)
    share = torch.where(total == 0, 0.0, total * torch.exp(top) / torch.where(whole == 0, 1.0, whole))
    total = torch.where(total == 0, 1.0, total)
    return KeyPart(keys.to(below.dtype), weights, weights / total, total, share)
