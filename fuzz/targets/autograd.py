"""The part that all differentiable targets share: leaves in, forward, autograd, Execution out."""

from __future__ import annotations

import inspect
from dataclasses import replace

import torch
from torch import Tensor

from fuzz.core.case import Case
from fuzz.core.target import Device, Execution, Target, Tensors
from fuzz.devices.present import cuda_present
from oracles.gradients import gradients
from oracles.masks import Causal, Full
from oracles.outputs import Outputs
from oracles.problem import AnyProblem, dense_mask

FLAGGED = ("full", "causal_top_left", "causal_top_left")  # native masks of what takes `dense_arguments`


def import_operators() -> None:
    """Imports what the first call of a custom operator imports (870 modules, seconds), which is not the kernel's time:
    to be called before a run."""
    import torch._dynamo  # noqa: F401


class AutogradTarget(Target):
    """A target whose kernel is a differentiable function. Subclasses say what they support and write `forward`."""

    def missing(self) -> str | None:
        """Reason why it cannot run on this machine, or None."""
        if self.device == "cuda" and not cuda_present():
            return "needs a CUDA device"
        return None

    def forward(self, case: Case, tensors: Tensors) -> tuple[Tensor, Tensor | None]:
        """O and, where the kernel gives it, LSE."""
        raise NotImplementedError

    def answered(self, case: Case, tensors: Tensors) -> tuple[Tensor, Outputs]:
        """O, from which gradients follow, and the outputs of the forward pass: O, LSE, and what the operation chose."""
        o, lse = self.forward(case, tensors)
        return o, Outputs(o.detach(), None if lse is None else lse.detach())

    def executed(self, case: Case, o: Tensor) -> str:
        """Proof of what ran: the names of the autograd nodes that made O; forward only, what `pinned` says."""
        return " < ".join(_nodes(o)) if o.grad_fn is not None else self.pinned

    @property
    def pinned(self) -> str:
        """What a forward without autograd can show: subclasses say why no other kernel can have run."""
        return ""

    def run(self, case: Case, tensors: Tensors) -> Execution:
        """Forward and, when asked for, backward; on a GPU they are queued, and the judge waits for them."""
        leaves = _leaves(tensors, case)
        o, outputs = self.answered(case, leaves)
        if case.problem.backward:
            outputs = _with_gradients(outputs, o, leaves)
        return Execution(outputs, self.executed(case, o))

    def run_around(self, case: Case, tensors: Tensors, others: Tensors) -> Execution:
        """As `run` on `tensors`, with a forward of `others` in between, whose gradients are taken last."""
        leaves, more = _leaves(tensors, case), _leaves(others, case)
        o, outputs = self.answered(case, leaves)
        later, other = self.answered(case, more)
        outputs = _with_gradients(outputs, o, leaves)
        _with_gradients(other, later, more)
        return Execution(outputs, self.executed(case, o))


def dense_arguments(problem: AnyProblem, bias: Tensor | None, device: torch.device) -> tuple[Tensor | None, bool]:
    """attn_mask and is_causal as torch.nn.functional.scaled_dot_product_attention takes them.

    The options stand for a mask only where they say exactly the same: nothing for Full, is_causal for a top-left
    Causal, both only without bias and padding. Otherwise a bool mask (True = keep) or, with a bias, the bias with -inf.
    """
    if bias is None and not problem.ragged:
        if problem.mask == Full():
            return None, False
        if problem.mask == Causal():
            return None, True
    kept = dense_mask(problem, device)
    if bias is None:
        return kept, False
    if problem.mask == Full() and not problem.ragged:
        return bias, False
    return torch.where(kept, bias, float("-inf")), False


def default_device() -> Device:
    """cuda where there is a GPU, else host."""
    return "cuda" if cuda_present() else "host"


def parameters(function) -> frozenset[str]:
    """Names of the parameters of a user's function."""
    return frozenset(inspect.signature(function).parameters)


def _nodes(o: Tensor, most: int = 24) -> list[str]:
    """Names of the nodes behind a tensor, nearest first."""
    found: list[str] = []
    todo = [o.grad_fn]
    while todo and len(found) < most:
        node = todo.pop(0)
        if node is None or type(node).__name__ == "AccumulateGrad":
            continue
        found.append(type(node).__name__)
        todo += [parent for parent, _ in node.next_functions]
    return found


def _leaves(tensors: Tensors, case: Case) -> Tensors:
    """The inputs as leaves of autograd, those that require a gradient where the case has a backward pass."""

    def leaf(tensor: Tensor | None, wanted: bool) -> Tensor | None:
        return None if tensor is None else tensor.detach().requires_grad_(wanted)

    problem = case.problem
    names = ("q", "k", "v")
    q, k, v = (leaf(getattr(tensors, n), problem.backward and n not in case.inputs.detached) for n in names)
    assert q is not None and k is not None and v is not None
    bias_wanted = bool(problem.backward and problem.bias and problem.bias.grad)
    weights = {name: leaf(getattr(tensors, name), problem.backward) for name in problem.weights}
    return Tensors(q, k, v, tensors.do, leaf(tensors.bias, bias_wanted), **weights)


def _with_gradients(outputs: Outputs, o: Tensor, leaves: Tensors) -> Outputs:
    """The outputs with the gradients of the leaves that require one."""
    assert leaves.do is not None
    named = {f"d{name}": getattr(leaves, name) for name in ("q", "k", "v", "bias", "w_k", "w_v", "w_gate")}
    asked = {name: x for name, x in named.items() if x is not None and x.requires_grad}
    found = gradients(o, list(asked.values()), leaves.do, unused=True)
    return replace(outputs, **dict(zip(asked, found, strict=True)))
