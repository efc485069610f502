"""Calls of kernels.nsa with random tensors, and their answers beside the formula of nsa_formula.py."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from nsa_formula import Setting, sequence

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAMES = ("q", "k", "v", "w_k", "w_v", "w_gate")
WEIGHTS = {"w_k": "w_k_compress", "w_v": "w_v_compress", "w_gate": "gate_proj_weight"}
# Of the largest value: what rounding to 8 and to 11 bits costs over all steps of a pass
BOUND = {torch.bfloat16: 0.012, torch.float16: 0.002}


@dataclass(frozen=True)
class Call:
    """One call. lengths: of the sequences; packed, or all alike."""

    lengths: tuple[int, ...] = (200,)
    heads_q: int = 2
    heads_kv: int = 1
    dim: int = 32
    packed: bool = False
    weights: tuple[str, ...] = ()
    dtype: torch.dtype = torch.bfloat16
    setting: Setting = field(default_factory=Setting)
    seed: int = 0

    def with_setting(self, **changes: Any) -> Call:
        return replace(self, setting=replace(self.setting, **changes))


def tensors_of(call: Call) -> dict[str, torch.Tensor]:
    """Q, K, V and the weights that the call has, that require gradients."""
    draw = torch.Generator().manual_seed(call.seed)
    rows = (sum(call.lengths),) if call.packed else (len(call.lengths), call.lengths[0])
    shapes = {
        "q": (*rows, call.heads_q, call.dim),
        "k": (*rows, call.heads_kv, call.dim),
        "v": (*rows, call.heads_kv, call.dim),
        "w_k": (call.heads_kv, call.dim, call.dim),
        "w_v": (call.heads_kv, call.dim, call.dim),
        "w_gate": (call.heads_q, 3, call.dim),
    }
    found = {}
    for name in NAMES:
        values = torch.randn(shapes[name], generator=draw) * (1 if name in "qkv" else call.dim**-0.5)
        if name in ("q", "k", "v", *call.weights):
            found[name] = values.to(call.dtype).to(DEVICE).requires_grad_()
    return found


def arguments(call: Call, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Keyword arguments of `native_sparse_answer`, after q, k and v."""
    found = {WEIGHTS[name]: x for name, x in tensors.items() if name in WEIGHTS} | asdict(call.setting)
    if call.packed:
        starts = torch.tensor([0, *call.lengths]).cumsum(0)
        found["cu_seqlens"] = starts.to(torch.int32).to(DEVICE)
    return found


def run(call: Call, function: Any, tensors: dict[str, torch.Tensor] | None = None, **more: Any):
    """(answer, gradients by name, gradient of the output) of a public function."""
    tensors = tensors_of(call) if tensors is None else tensors
    answer = function(tensors["q"], tensors["k"], tensors["v"], **arguments(call, tensors), **more)
    draw = torch.Generator().manual_seed(call.seed + 1)
    grad_out = torch.randn(answer.out.shape, generator=draw).to(call.dtype).to(DEVICE)
    grads = torch.autograd.grad(answer.out, list(tensors.values()), grad_out)
    return answer, dict(zip(tensors, grads, strict=True)), grad_out


def expected(call: Call, tensors: dict[str, torch.Tensor], grad_out: torch.Tensor):
    """(out, gradients by name, [sequence] → blocks, groups) by the formula, float64 on the CPU."""
    wide = {name: x.detach().double().cpu().requires_grad_() for name, x in tensors.items()}
    weights = [wide.get(name) for name in ("w_k", "w_v", "w_gate")]
    if call.packed:
        split = [x.split(call.lengths) for x in (wide["q"], wide["k"], wide["v"])]
    else:
        split = [x.unbind(0) for x in (wide["q"], wide["k"], wide["v"])]
    answers = [sequence(*rows, *weights, call.setting) for rows in zip(*split, strict=True)]
    out = torch.cat([x[0] for x in answers]) if call.packed else torch.stack([x[0] for x in answers])
    wanted = torch.autograd.grad(out, list(wide.values()), grad_out.double().cpu(), allow_unused=True)
    grads = {name: torch.zeros_like(wide[name]) if x is None else x for name, x in zip(wide, wanted, strict=True)}
    return out.detach(), grads, [x[1:] for x in answers]


def listed(rows: torch.Tensor) -> list:
    """[head][tile] → numbers, of one sequence's rows."""
    return [[[j for j in row if j >= 0] for row in head] for head in rows.tolist()]


def errors(call: Call, answer: Any, grads: dict[str, torch.Tensor], wanted: Any, wanted_grads: Any) -> dict[str, float]:
    """The largest error of each tensor, relative to its largest value."""
    pairs = {"out": (answer.out, wanted), **{name: (grads[name], wanted_grads[name]) for name in grads}}
    found = {}
    for name, (tensor, want) in pairs.items():
        got = tensor.detach().double().cpu()
        assert got.shape == want.shape and got.isfinite().all(), name
        if want.numel():
            found[name] = float((got - want).abs().max() / want.abs().max().clamp(min=1e-3))
    return found


def check(call: Call, function: Any) -> Any:
    """Compares output, selection and gradients with the formula; the answer."""
    tensors = tensors_of(call)
    answer, grads, grad_out = run(call, function, tensors)
    wanted, wanted_grads, chosen = expected(call, tensors, grad_out)
    for b, (blocks, groups) in enumerate(chosen):
        tiles = len(blocks[0])
        assert [head[:tiles] for head in listed(answer.selection.blocks[b])] == blocks
        assert not any(row for head in listed(answer.selection.blocks[b]) for row in head[tiles:])
        if groups is not None:
            assert [head[:tiles] for head in listed(answer.selection.groups[b])] == groups
    found = errors(call, answer, grads, wanted, wanted_grads)
    assert max(found.values(), default=0.0) <= BOUND[call.dtype], found
    return answer
