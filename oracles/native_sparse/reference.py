"""The right answer of native sparse attention: each branch is attention on a boolean matrix, gradients by autograd.

In float64, with the selection frozen: the true one, or one that is given. One KV head of one sequence at a time, on
which all that it reads depends alone: memory is bounded by its query heads' scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from oracles.gradients import gradients
from oracles.native_sparse.pooling import block_means
from oracles.native_sparse.problem import BRANCHES, NativeSparse
from oracles.native_sparse.rules import sees_compressed, sees_selected, sees_window
from oracles.native_sparse.selection import chosen_of, true_selection
from oracles.outputs import Outputs
from oracles.problem import sequence_view
from oracles.reference.attention import attention, no_tf32


@dataclass(frozen=True)
class Part:
    """One KV head of one sequence: its place, and the boolean matrices of its branches, each (1 or group, rows, cols)
    in the order of BRANCHES."""

    p: NativeSparse
    batch: int
    head: int
    seen: tuple[Tensor, Tensor, Tensor]

    def take(self, name: str, whole: Tensor) -> Tensor:
        """The part's view of a tensor of the problem: q, o, do, dq (group, length, dim), k, v, dk, dv (length, dim),
        w_k, w_v (dim, dim), w_gate (group, 3, dim), and their gradients."""
        queries = slice(self.head * self.p.group, (self.head + 1) * self.p.group)
        base = name.removeprefix("d")
        if base in ("w_k", "w_v"):
            return whole[self.head]
        if base == "w_gate":
            return whole[queries]
        sequence = sequence_view(self.p, name, whole, self.batch)
        return sequence[self.head] if base in ("k", "v") else sequence[queries]


def parts(p: NativeSparse, choices: Mapping[str, Tensor], device: torch.device) -> Iterator[Part]:
    """Every KV head of every sequence that has tokens, with a selection as of `selection.true_selection`."""
    for b, length in enumerate(p.lengths):
        if not length:
            continue
        blocks, groups = chosen_of(p, {name: x.to(device) for name, x in choices.items()}, b)
        window = sees_window(p, length, device)
        for head in range(p.heads_kv):
            queries = slice(head * p.group, (head + 1) * p.group)
            compressed = sees_compressed(p, length, None if groups is None else groups[queries], device)
            yield Part(p, b, head, (compressed, sees_selected(p, length, blocks[queries]), window))


def reference(
    p: NativeSparse,
    tensors: Mapping[str, Tensor | None],
    choices: Mapping[str, Tensor] | None = None,
    *,
    precision: torch.dtype = torch.float64,
) -> Outputs:
    """O, the choices and, where `do` is given, all gradients.

    tensors  q, k, v, do and the weights by name, in the shapes of `shapes(p)`, any float dtype
    choices  the frozen selection; None: the true one
    returns  contiguous tensors in `precision` on the inputs' device; padding is 0
    """
    there = {name: x.detach() for name, x in tensors.items() if x is not None}
    q = there["q"]
    choices = true_selection(p, there) if choices is None else choices
    names = ["q", "k", "v", *p.weights]
    outputs = ["o"] + ([f"d{name}" for name in names] if "do" in there else [])
    sizes = p.shapes()
    found = {name: torch.zeros(sizes[name], dtype=precision, device=q.device) for name in outputs}
    with torch.enable_grad(), no_tf32():
        for part in parts(p, choices, q.device):
            leaves = {n: part.take(n, there[n]).to(precision, copy=True).requires_grad_("do" in there) for n in names}
            o = answer(part, leaves)
            part.take("o", found["o"]).copy_(o.detach())
            if "do" in there:
                do = part.take("do", there["do"]).to(precision)
                grads = gradients(o, list(leaves.values()), do, unused=True)
                for name, grad in zip(leaves, grads, strict=True):
                    part.take(f"d{name}", found[f"d{name}"]).add_(grad)
    return Outputs(**found, **{name: choices[name] for name in p.choices})


def answer(part: Part, given: Mapping[str, Tensor]) -> Tensor:
    """O (group, length, dim) of a part, differentiable in all of `given`, tensors as `Part.take` gives them."""
    p, q, k, v = part.p, given["q"], given["k"], given["v"]
    mean_k, mean_v = (block_means(x, p.compress_block_size) for x in (k, v))
    mean_k = mean_k @ given["w_k"] if "w_k" in given else mean_k
    mean_v = mean_v @ given["w_v"] if "w_v" in given else mean_v
    outputs = []
    for keep, keys, values in zip(part.seen, (mean_k, k, k), (mean_v, v, v), strict=True):
        o, _ = attention(q[None], keys[None, None], values[None, None], keep[None], scale=p.scale_value)
        outputs.append(o[0])
    branches = torch.stack(outputs)
    if "w_gate" not in given:
        return branches.sum(0) / len(BRANCHES)
    gates = torch.sigmoid(q @ given["w_gate"].mT)  # (group, length, 3)
    return (gates.permute(2, 0, 1)[..., None] * branches).sum(0)
