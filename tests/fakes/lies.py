"""Targets that answer, but not what was asked."""

from __future__ import annotations

import random
from dataclasses import replace

import torch
from honest import attention, fake

from fuzz.core.case import Case
from fuzz.targets import Execution, Support, Tensors
from fuzz.targets.autograd import AutogradTarget
from oracles.numerics import EXACT
from oracles.outputs import Outputs
from oracles.problem import dense_mask
from oracles.reference.attention import reference

_chance = random.SystemRandom()


@fake("flaky")
def flaky(*arguments):
    """Doubles its answer one time in ten, whatever the seed."""
    o, lse = attention(*arguments)
    return (2 * o if _chance.random() < 0.1 else o), lse


@fake("ignores_softcap")
def ignores_softcap(q, k, v, mask, scale, softcap, bias):
    """Takes a softcap and does nothing with it."""
    return attention(q, k, v, mask, scale, 0.0, bias)


@fake("ignores_scale")
def ignores_scale(q, k, v, mask, scale, softcap, bias):
    """Takes a scale and uses dim ** -0.5."""
    return attention(q, k, v, mask, q.shape[-1] ** -0.5, softcap, bias)


_BEFORE: list[torch.Tensor] = []


@fake("wrong_after_a_quarter")
def wrong_after_a_quarter(q, k, v, mask, scale, softcap, bias):
    """NaN where Q is four times the Q of the call before, so that the same call alone is right."""
    wrong = bool(_BEFORE) and _BEFORE[0].shape == q.shape and torch.equal(q, _BEFORE[0] * 4) and bool(q.any())
    _BEFORE[:] = [q.detach().clone()]
    o, lse = attention(q, k, v, mask, scale, softcap, bias)
    return (o * torch.nan if wrong else o), lse


@fake("ignores_mask")
def ignores_mask(q, k, v, mask, scale, softcap, bias):
    """Takes a mask and lets every row that has a key see all keys that any row sees."""
    seen = mask.any(-1, keepdim=True) & mask.any(-2, keepdim=True)
    return attention(q, k, v, seen, scale, softcap, bias)


@fake("wrong_dtype", dtypes=("float16", "bfloat16"))
def wrong_dtype(*arguments):
    """Returns O in fp32."""
    o, lse = attention(*arguments)
    return o.float(), lse


@fake("returns_none")
def returns_none(*arguments):
    """Runs and returns nothing."""
    attention(*arguments)


class WrongShape(AutogradTarget):
    """Returns O as (batch, len_q, heads_q, dim_v); its gradients are right."""

    name = "fake.wrong_shape"
    summary = "returns O in another order of axes"
    support = Support(bias=True, bias_grad=True, softcap=True, lse=True)
    numerics = EXACT

    def forward(self, case: Case, tensors: Tensors):
        """Honest."""
        p, t = case.problem, tensors
        return attention(t.q, t.k, t.v, dense_mask(p), p.scale_value, p.softcap, t.bias)

    def run(self, case: Case, tensors: Tensors) -> Execution:
        """Honest but for O's shape."""
        execution = super().run(case, tensors)
        outputs = execution.outputs
        return replace(execution, outputs=replace(outputs, o=outputs.o.transpose(1, 2)))


class DropsAGradient(WrongShape):
    """Returns None for dK."""

    name = "fake.drops_a_gradient"
    summary = "returns no dK"

    def run(self, case: Case, tensors: Tensors) -> Execution:
        """Honest but for dK."""
        execution = AutogradTarget.run(self, case, tensors)
        return replace(execution, outputs=replace(execution.outputs, dk=None))


class CopiesTheReference(AutogradTarget):
    """Never runs a kernel: it hands back what the oracle computes, perfect numbers without a proof of a run."""

    name = "fake.copies_the_reference"
    summary = "hands back the oracle's own answer"
    support = Support(bias=True, bias_grad=True, softcap=True, lse=True)
    numerics = EXACT
    proof = ("honest_kernel",)

    def run(self, case: Case, tensors: Tensors) -> Execution:
        """The reference, rounded to the dtypes that a kernel would return."""
        p, t = case.problem, tensors
        right = reference(p, t.q, t.k, t.v, bias=t.bias, do=t.do)
        dtypes = {"lse": torch.float32, "dbias": t.bias.dtype if t.bias is not None else None}
        rounded = {name: x.to(dtypes.get(name, p.torch_dtype)) for name, x in right.items()}
        return Execution(Outputs(**rounded), "")


TARGETS = [WrongShape(), DropsAGradient(), CopiesTheReference()]
