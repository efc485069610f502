"""torch.flex: FlexAttention, eager on a CPU and compiled on a GPU, with block masks built from our token predicate."""

from __future__ import annotations

import functools
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from fuzz.core.case import Case
from fuzz.core.case_limits import Size
from fuzz.core.script_call import Text, options
from fuzz.core.support import Support
from fuzz.core.surface import Surface
from fuzz.core.target import Device, Tensors
from fuzz.targets.autograd import AutogradTarget
from oracles.masks import Full
from oracles.numerics import FLEX_EAGER, FUSED
from oracles.problem import Problem, dense_mask

_COMPILED = Support(
    bias=True, bias_grad=True, softcap=True, zero_lengths=False, lse=True, dim=(16, 256, 16), max_pairs=1 << 24
)
_EAGER = replace(_COMPILED, dim=(1, 256, 1), backward=False, bias_grad=False)


_ATTENTION = Surface.of(flex_attention)
_BLOCK_MASK = Surface.of(create_block_mask, kernel=False)
_TRACING = 0.2  # seconds of a call in eager mode, on one slow core


class TorchFlex(AutogradTarget):
    """flex_attention with score_mod for softcap and bias, block_mask for the mask."""

    def __init__(self, device: Device) -> None:
        self.name = "torch.flex"
        self.device = device
        self.summary = "flex_attention, eager" if device == "host" else "flex_attention, compiled"
        self.support = _EAGER if device == "host" else _COMPILED
        self.numerics = FLEX_EAGER if device == "host" else FUSED
        self.proof = ("FlexAttention",) if device == "host" else ("CompiledFunction",)
        self.session_size = Size(1 << 15) if device == "host" else None
        self.pairs_per_second = 5e6 if device == "host" else 1e9

    @property
    def pinned(self) -> str:
        """flex_attention has one eager implementation; the compiled one is compiled with fullgraph=True."""
        return "FlexAttention forward" if self.device == "host" else "CompiledFunction forward"

    def prepare(self, case: Case, tensors: Tensors) -> None:
        """On a GPU: one whole run, which compiles for this case's shapes and options. On the host: what a process's
        first call imports and sets up, once."""
        if self.device == "cuda":
            self.run(case, tensors)
        else:
            _warm_up()

    def forward(self, case: Case, tensors: Tensors) -> tuple[Tensor, Tensor | None]:
        """O and LSE (natural logarithm)."""
        p = case.problem
        attend = flex_attention if self.device == "host" else _compiled()
        block_mask = None
        if p.mask != Full() or p.ragged:
            block_mask = _block_mask(p, tensors.q.device)
        o, lse = _ATTENTION.call(
            attend,
            tensors.q,
            tensors.k,
            tensors.v,
            score_mod=_score_mod(p, tensors.bias),
            block_mask=block_mask,
            scale=p.scale,
            enable_gqa=p.group > 1,
            return_lse=True,
        )
        return o, lse

    def expected_seconds(self, case: Case) -> float:
        """On the host each call is traced anew, whatever its size."""
        return super().expected_seconds(case) + (_TRACING if self.device == "host" else 0.0)

    def surfaces(self) -> tuple[Surface, ...]:
        """See Target."""
        return (_ATTENTION, _BLOCK_MASK)

    def script_call(self, case: Case) -> Text:
        """`forward` as text."""
        p = case.problem
        masked, scored = p.mask != Full() or p.ragged, bool(p.softcap or p.bias)
        arguments = ["q", "k", "v"] + ["score_mod=score_mod"] * scored + ["block_mask=block_mask"] * masked
        call = [_SCRIPT_MASK] if masked else []
        if scored:
            lines = [f"    score = {p.softcap} * torch.tanh(score / {p.softcap})"] if p.softcap else []
            added = " + bias[b % bias.shape[0], h % bias.shape[1], q % bias.shape[2], k % bias.shape[3]]"
            call += ["def score_mod(score, b, h, q, k):", *lines, f"    return score{added if p.bias else ''}", ""]
        arguments += options(p)
        call.append(f"o, lse = attend({', '.join([*arguments, 'return_lse=True'])})")
        compiled = "torch.compile(flex_attention, fullgraph=True)" if self.device == "cuda" else "flex_attention"
        imports = ("from torch.nn.attention.flex_attention import create_block_mask, flex_attention",)
        lines = [line for part in call for line in part.split("\n")]
        return Text(tuple(lines), imports, f"attend = {compiled}", mask=masked, lse=True)


_SCRIPT_MASK = """\
def mask_mod(b, h, q, k):
    return keep[b % keep.shape[0], h % keep.shape[1], q, k]

batch, heads = (size if size > 1 else None for size in keep.shape[:2])
block_mask = create_block_mask(mask_mod, batch, heads, *keep.shape[2:], device=DEVICE)"""


def targets() -> list[TorchFlex]:
    """Eager and compiled."""
    return [TorchFlex("host"), TorchFlex("cuda")]


@functools.cache
def _warm_up() -> None:
    x = torch.zeros(1, 1, 1, 16)
    flex_attention(x, x, x)


@functools.cache
def _compiled():
    torch._dynamo.config.recompile_limit = 10_000
    torch._dynamo.config.specialize_float = True  # a softcap or scale that changes between calls breaks it (torch 2.11)
    torch._dynamo.config.accumulated_recompile_limit = 100_000
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    return torch.compile(flex_attention, fullgraph=True)


def _block_mask(p: Problem, device: torch.device):
    kept = dense_mask(p, device)

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return kept[b if kept.shape[0] > 1 else 0, h if kept.shape[1] > 1 else 0, q, k]

    batch = p.batch if kept.shape[0] > 1 else None
    heads = p.heads_q if kept.shape[1] > 1 else None
    return _BLOCK_MASK.call(create_block_mask, mask_mod, batch, heads, p.len_q, p.len_k, device=device)


def _score_mod(p: Problem, bias: Tensor | None):
    cap = p.softcap
    if not cap and bias is None:
        return None

    def score_mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        if cap:
            score = cap * torch.tanh(score / cap)
        if bias is None:
            return score
        at = [i if size > 1 else 0 for i, size in zip((b, h, q, k), bias.shape, strict=True)]
        return score + bias[at[0], at[1], at[2], at[3]]

    return score_mod
