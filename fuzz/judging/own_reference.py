"""The error budget of an operation that is not attention: from its own reference, and how that answers to rounding.

A kernel's roundings are unknown here, so they are taken to do what a rounding of every input does. Runs of the
reference in float64 on inputs that are off by half a unit in the last place, at random, show how far that goes.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fuzz.core.case import Case
from fuzz.core.target import Target, Tensors
from oracles.error_budget.budget import Budget
from oracles.error_budget.same_precision import Same, stored_as
from oracles.outputs import Outputs

RUNS = 6
FP32 = 2.0**-22  # relative error of fp32 arithmetic: a few roundings
ROUNDINGS = 4.0  # that a value goes through on its way, each as large as one of an input


def own_budget(case: Case, target: Target, given: Tensors) -> Budget | None:
    """The budget of a case whose target has a reference of its own, else None."""
    right = target.right(case, given, torch.float64)
    if right is None:
        return None
    unit = max(torch.finfo(case.problem.torch_dtype).eps / 2, FP32)
    generator = torch.Generator(device=given.q.device).manual_seed(case.inputs.seed)

    def off(x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        noise = torch.rand(x.shape, generator=generator, device=x.device, dtype=torch.float64)
        return x.double() * (1 + unit * (2 * noise - 1))

    names = ("q", "k", "v", "do", "bias")
    runs = []
    for _ in range(RUNS):
        moved = replace(given, **{name: off(getattr(given, name)) for name in names})  # type: ignore[arg-type]
        found = target.right(case, moved, torch.float64)
        assert found is not None
        runs.append(found)
    noise, pair = {}, {}
    for name, want in right.items():
        answers = torch.stack([getattr(run, name) for run in runs])
        dtype = stored_as(case.problem, name)
        last = want.abs() * (torch.finfo(dtype).eps / 2) + torch.finfo(dtype).tiny
        spread = (answers - want).nan_to_num(nan=0.0).pow(2).mean(0) * ROUNDINGS
        noise[name] = (spread + last**2 / 3).sqrt().float()
        pair[name] = answers[:2].to(dtype).float()
    return Budget.of(case.problem, right, Same(Outputs(**pair), Outputs(**noise)), padding=target.clears_padding)
