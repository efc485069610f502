"""Native sparse attention in plain PyTorch, honest, and copies of it with one defect each."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fuzz.core.case import Case
from fuzz.core.case_limits import Size
from fuzz.core.support import Support
from fuzz.core.target import Tensors
from fuzz.targets.autograd import AutogradTarget
from oracles.outputs import Outputs

GROUP = 128


@dataclass(frozen=True)
class Defects:
    """What is wrong; nothing by default."""

    leak: bool = False  # rows of the compressed branch see every block of their tile
    window_lost: bool = False  # the window branch's gradient is full attention's
    gates_swapped: bool = False
    future_block: bool = False  # the last block of each list is the first that is not allowed
    widened: bool = False  # rows see the blocks of a pair of blocks of which one was selected
    divides_by_c: bool = False  # the last block's mean


class PlainSparse(AutogradTarget):
    """Loops over sequences; P and what branches give are rounded to the inputs' dtype, sums are fp32's, those of the
    branches' gradients too."""

    name = "fake.native_sparse"
    summary = "native sparse attention in plain PyTorch"
    operation = "native_sparse_attention"
    support = Support(layouts=("padded", "packed"), ragged=False, cross=False, dim_v_differs=False)
    session_size = Size(1 << 18, 8, 400)

    def __init__(self, lie: str = "", **defects: bool) -> None:
        self.defects = Defects(**defects)
        if lie:
            self.name = f"fake.native_sparse.{lie}"

    def answered(self, case: Case, tensors: Tensors) -> tuple[Tensor, Outputs]:
        """See AutogradTarget."""
        p, t = case.problem, tensors
        weights = t.w_k, t.w_v, t.w_gate
        if p.layout == "padded":
            each = [_Sequence(p, self.defects, t.q[b], t.k[b], t.v[b], *weights) for b in range(p.batch)]
        else:
            split = zip(*(x.split(p.lengths_q) for x in (t.q, t.k, t.v)), strict=True)
            each = [_Sequence(p, self.defects, *(x.transpose(0, 1) for x in one), *weights) for one in split]
        answers = [one.answer() for one in each]
        shape = p.shapes()
        chosen = {name: _together([one[1][name] for one in answers], shape[name]) for name in p.choices}
        if p.layout == "padded":
            o = torch.stack([one[0] for one in answers])
        else:
            o = torch.cat([one[0].transpose(0, 1) for one in answers])
        return o, Outputs(o.detach(), **chosen)


def _together(lists: list[Tensor], shape: tuple[int, ...]) -> Tensor:
    whole = torch.full(shape, -1, dtype=torch.int32)
    for b, one in enumerate(lists):
        whole[b, :, : one.shape[1], : one.shape[2]] = one[..., : shape[-1]]
    return whole


class _Sequence:
    """q (heads, length, dim), k, v (heads_kv, length, dim). One float32 copy of each serves all branches, so that their
    gradients are added in float32 and rounded once."""

    def __init__(self, p, defects: Defects, q, k, v, w_k, w_v, w_gate) -> None:
        self.dtype = q.dtype
        q, k, v = q.float(), k.float(), v.float()
        self.p, self.defects, self.q, self.k, self.v = p, defects, q, k, v
        self.w_gate = w_gate
        self.length, self.group, self.scale = q.shape[1], q.shape[0] // k.shape[0], p.scale_value
        self.mean_k, self.mean_v = self.pool(k, w_k), self.pool(v, w_v)

    def pool(self, x: Tensor, weight: Tensor | None) -> Tensor:
        c = self.p.compress_block_size
        parts = [part.sum(1) / (c if self.defects.divides_by_c else part.shape[1]) for part in x.split(c, 1)]
        means = torch.stack(parts, 1).to(self.dtype) if self.length else x.to(self.dtype)
        return (means if weight is None else means @ weight).float()

    def answer(self) -> tuple[Tensor, dict[str, Tensor]]:
        p, q, n = self.p, self.q, self.length
        if not n:
            none = torch.zeros((p.heads_q, 0, 0), dtype=torch.int32)
            return q.to(self.dtype), {"blocks": none, "groups": none}
        blocks, groups = self.select()
        row, key = torch.arange(n)[:, None], torch.arange(n)[None, :]
        tile, c = row // p.q_tile, p.compress_block_size
        block = torch.arange(self.mean_k.shape[1])[None, :]
        if p.causal == "strict":
            compressed = (block + 1) * c <= row + 1
        elif p.causal:
            last = (tile + 1) * p.q_tile - 1 if self.defects.leak else row
            compressed = block * c <= last
        else:
            compressed = block >= 0
        compressed = compressed.expand(p.heads_q, n, -1)
        if groups is not None:
            compressed = compressed & groups[:, tile, block // GROUP]
        selected = blocks[:, tile, key // c]
        if self.defects.widened:
            other = (key // c ^ 1).clamp_max(blocks.shape[-1] - 1)
            selected = selected | blocks[:, tile, other]
        window = (key - row).abs() <= p.window_size // 2
        if p.causal:
            selected = selected & (key <= row)
            window = (row - p.window_size < key) & (key <= row)
        window = window.expand(p.heads_q, n, n)
        outputs = [
            self.attend(self.mean_k, self.mean_v, compressed),
            self.attend(self.k, self.v, selected),
            self.window(window, key <= row),
        ]
        if self.w_gate is None:
            o = sum(outputs) / 3
        else:
            gates = torch.sigmoid(q @ self.w_gate.float().mT)
            order = (1, 0, 2) if self.defects.gates_swapped else (0, 1, 2)
            o = sum(gates[..., g, None] * x for g, x in zip(order, outputs, strict=True))
        return o.to(self.dtype), {"blocks": _lists(blocks), "groups": blocks if groups is None else _lists(groups)}

    def attend(self, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        k, v = (x.repeat_interleave(self.group, 0) for x in (k, v))
        scores = (self.q @ k.mT * self.scale).masked_fill(~keep, -math.inf)
        rows = keep.any(-1, keepdim=True)
        probs = torch.softmax(scores.masked_fill(~rows, 0.0), -1).masked_fill(~rows, 0.0)
        return self.rounded(self.rounded(probs) @ v)

    def rounded(self, x: Tensor) -> Tensor:
        """x as kept in the inputs' dtype; its gradient stays float32, as a kernel's dP and dO / 3."""
        return x + (x.to(self.dtype).float() - x).detach()

    def window(self, keep: Tensor, causal: Tensor) -> Tensor:
        o = self.attend(self.k, self.v, keep)
        if not self.defects.window_lost:
            return o
        other = self.attend(self.k, self.v, causal.expand_as(keep))
        return other + (o - other).detach()

    def select(self) -> tuple[Tensor, Tensor | None]:
        p, n = self.p, self.length
        starts = range(0, n, p.q_tile)
        spans = [(s, min(s + p.q_tile, n)) for s in starts]
        if p.causal == "strict":
            spans = [(max(0, s - p.q_tile + 1), s + 1) for s in starts]
        with torch.no_grad():
            means = torch.stack([self.q[:, a:b].mean(1) for a, b in spans], 1)
            scores = self.scale * (means @ self.mean_k.repeat_interleave(self.group, 0).mT)
        tile, block = torch.arange(len(spans))[:, None], torch.arange(scores.shape[-1])[None, :]
        c = p.compress_block_size
        allowed = block >= 0
        if p.causal == "strict":
            allowed = (block + 1) * c <= tile * p.q_tile + 1
        elif p.causal:
            allowed = block * c < (tile + 1) * p.q_tile
        chosen = _top(scores, allowed, p.num_selected_blocks)
        if self.defects.future_block:
            chosen = self.ahead(chosen, allowed)
        count = -(-scores.shape[-1] // GROUP)
        most = p.num_cmp_selected_blocks
        if most is None or count <= most:
            return chosen, None
        means = []
        for g in range(count):
            part = slice(g * GROUP, (g + 1) * GROUP)
            counted = allowed[..., part] if p.causal == "strict" else torch.ones_like(allowed[..., part])
            counted = counted.expand(len(spans), -1)
            total = (scores[..., part] * counted).sum(-1)
            means.append(total / counted.sum(-1))
        return chosen, _top(torch.stack(means, -1), allowed[..., ::GROUP], most)

    @staticmethod
    def ahead(chosen: Tensor, allowed: Tensor) -> Tensor:
        """The last block of each list replaced by the first that is not allowed."""
        chosen = chosen.clone()
        for t, row in enumerate(allowed.expand(chosen.shape[1], -1)):
            if not bool(row.all()):
                for lists in chosen[:, t]:
                    if bool(lists.any()):
                        lists[int(lists.nonzero().max())] = False
                        lists[int((~row).nonzero().min())] = True
        return chosen


def _top(scores: Tensor, allowed: Tensor, most: int) -> Tensor:
    order = scores.masked_fill(~allowed, -math.inf).sort(dim=-1, descending=True, stable=True).indices[..., :most]
    return torch.zeros(scores.shape, dtype=torch.bool).scatter_(-1, order, True) & allowed


def _lists(chosen: Tensor) -> Tensor:
    count = chosen.shape[-1]
    index = torch.where(chosen, torch.arange(count), count).sort(-1).values
    return torch.where(index == count, -1, index).int()


LIES = ("leak", "window_lost", "gates_swapped", "future_block", "widened", "divides_by_c")
TARGETS = [PlainSparse(), *(PlainSparse(lie, **{lie: True}) for lie in LIES)]
