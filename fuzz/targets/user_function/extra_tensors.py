"""Operations that are not attention: further tensors of a user's function, and a reference of its own."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fuzz.core.case import Case
from fuzz.core.target import Tensors
from fuzz.targets.autograd import parameters
from fuzz.targets.user_function.function_arguments import arguments_of
from oracles.outputs import Outputs

Shapes: TypeAlias = Mapping[str, tuple[int | str, ...]]
"""Axes by name: each a number, or the name of a field of Problem such as 'batch', 'heads_q', 'len_k', 'dim'."""
Reference: TypeAlias = Callable[..., Any]


def extra_tensors(shapes: Shapes, case: Case, device: torch.device) -> dict[str, Tensor]:
    """Standard normal numbers in the problem's dtype; they follow from the case's seed and their name alone.

    Raises ValueError for an axis that is no field of the problem.
    """
    found = {}
    for name, axes in shapes.items():
        generator = torch.Generator().manual_seed(zlib.crc32(f"{name}/{case.inputs.seed}".encode()))
        sizes = [axis if isinstance(axis, int) else _size(case, name, axis) for axis in axes]
        found[name] = torch.randn(sizes, generator=generator).to(case.problem.torch_dtype).to(device)
    return found


def _size(case: Case, name: str, axis: str) -> int:
    size = getattr(case.problem, axis, None)
    if not isinstance(size, int):
        raise ValueError(f"extra: axis {axis!r} of {name!r} must be a number of the problem, such as 'heads_q'")
    return size


def own_reference(
    reference: Reference, shapes: Shapes, case: Case, tensors: Tensors, precision: torch.dtype
) -> Outputs:
    """O, LSE where the reference gives one, and the gradients by autograd, in `precision`. It is called as the kernel
    is, always on (batch, heads, length, dim)."""
    named = parameters(reference)
    given = {name: x.value(case, tensors, "top_left") for name, x in arguments_of(named).items()}
    given |= {name: value for name, value in case.variant.items() if name in named}
    given |= {name: x.to(precision) for name, x in extra_tensors(shapes, case, tensors.q.device).items()}
    p = case.problem
    with torch.enable_grad():
        leaves = {n: getattr(tensors, n).detach().to(precision).requires_grad_(p.backward) for n in ("q", "k", "v")}
        if "bias" in given and tensors.bias is not None:
            wanted = bool(p.backward and p.bias and p.bias.grad)
            leaves["bias"] = given["bias"] = tensors.bias.detach().to(precision).requires_grad_(wanted)
        answer = reference(leaves["q"], leaves["k"], leaves["v"], **given)
        o, lse = answer if isinstance(answer, tuple) else (answer, None)
        grads: dict[str, Tensor] = {}
        if tensors.do is not None:
            asked = {f"d{name}": x for name, x in leaves.items() if x.requires_grad}
            do = tensors.do.to(precision)
            grads = dict(
                zip(asked, torch.autograd.grad(o, list(asked.values()), do, materialize_grads=True), strict=True)
            )
    return Outputs(o.detach(), None if lse is None else lse.detach(), **grads)
