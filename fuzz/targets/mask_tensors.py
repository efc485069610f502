"""The ways to say a mask, and a bias, by scaled_dot_product_attention's attn_mask and is_causal.

One problem, several calls: flag or tensor, bool or additive, and tensors of every shape that broadcasts.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from fuzz.core.script_call import dense_text
from fuzz.targets.autograd import dense_arguments
from oracles.masks import Causal, Full
from oracles.problem import AnyProblem, dense_mask, shapes

SAID = ("auto", "bool", "float", "both")
SHAPES = ("plain", "narrow", "expanded", "whole", "padded")
AXES = (0, 1, 2, 3)
ROOM = 16  # unused columns after each row of a padded tensor


def says(problem: AnyProblem) -> tuple[str, ...]:
    """The ways of SAID, beside the default, that can say the problem's mask: 'both' is a flag and a tensor that says
    the same, so that the answer is one whether they are combined or one of them counts."""
    if problem.bias is not None:
        return ("float",)
    causal = problem.mask == Causal() and not problem.ragged
    return ("bool", "float", "both") if causal else ("bool", "float")


def mask_arguments(
    problem: AnyProblem, bias: Tensor | None, device: torch.device, said: str = "auto"
) -> tuple[Tensor | None, bool]:
    """attn_mask and is_causal.

    said  auto: flags where they say exactly the mask, else bool, or additive with a bias; bool: a bool tensor, True =
          keep; float: 0 or the bias where kept, -inf elsewhere, in the dtype of the inputs; both: a bool tensor beside
          is_causal
    """
    if said == "auto":
        return dense_arguments(problem, bias, device)
    kept = dense_mask(problem, device)
    if said == "float":
        added = torch.zeros((), dtype=problem.torch_dtype, device=device) if bias is None else bias
        return torch.where(kept, added, float("-inf")), False
    return kept, said == "both"


def shaped(mask: Tensor, problem: AnyProblem, how: str, narrowed: tuple[int, ...] = AXES) -> Tensor:
    """The same mask as a tensor of another shape or layout; differentiable.

    how       plain: axes of 1 where nothing varies; narrow: also those along which a mask without bias is the same, and
              axes of 1 in front left out; expanded: all axes in full, with stride 0; whole: the same, in memory;
              padded: whole, with ROOM unused columns after each row
    narrowed  the axes that may be narrowed, or have stride 0
    """
    full = (problem.batch, problem.heads_q, problem.len_q, problem.len_k)
    if how == "plain":
        return mask
    if how == "narrow":
        same = _same_axes(problem) if problem.bias is None else frozenset()
        mask = mask[tuple(slice(0, 1) if axis in same and axis in narrowed else slice(None) for axis in AXES)]
        while mask.dim() > (3 not in narrowed) and mask.shape[0] == 1:
            mask = mask[0]
        return mask
    if 3 not in narrowed:
        mask = mask.expand(*mask.shape[:3], full[3]).contiguous()
    whole = mask.expand(full)
    if how == "expanded":
        return whole
    return F.pad(whole, (0, ROOM))[..., : full[3]] if how == "padded" else whole.contiguous()


def expanded_heads(x: Tensor, group: int) -> Tensor:
    """k or v with its heads repeated for each query head, as enable_gqa does it: with stride 0 where there is one."""
    return x[:, :, None].expand(-1, -1, group, -1, -1).flatten(1, 2)


def mask_text(
    problem: AnyProblem, said: str, how: str, narrowed: tuple[int, ...] = AXES
) -> tuple[tuple[str, ...], list[str], bool]:
    """`mask_arguments` and `shaped` as text: lines before the call, the arguments of the call, whether they read `keep`
    (as Text.mask says)."""
    if (said, how) == ("auto", "plain"):
        mask, reads = dense_text(problem)
        return (), [mask] * bool(mask), reads
    bias = None if problem.bias is None else torch.zeros(shapes(problem)["bias"], dtype=problem.torch_dtype)
    mask_tensor, causal = mask_arguments(problem, bias, torch.device("cpu"), said)
    if mask_tensor is None:
        return (), ["is_causal=True"] * causal, False
    reads = said != "auto" or problem.mask != Full() or problem.ragged
    if said in ("bool", "both") or (said == "auto" and problem.bias is None):
        text = "keep"
    else:
        added = "bias" if problem.bias is not None else "torch.zeros((), dtype=DTYPE, device=DEVICE)"
        text = f'torch.where(keep, {added}, float("-inf"))' if reads else added
    full = (problem.batch, problem.heads_q, problem.len_q, problem.len_k)
    first = ", ".join(
        ":1" if problem.bias is None and _same_along(mask_tensor, a) and a in narrowed else ":" for a in AXES
    )
    last = "" if 3 in narrowed else f".expand(-1, -1, -1, {full[3]}).contiguous()"
    text += {
        "plain": "",
        "narrow": f"[{first}].reshape({tuple(shaped(mask_tensor, problem, 'narrow', narrowed).shape)})",
        "expanded": f"{last}.expand({full})",
        "whole": f"{last}.expand({full}).contiguous()",
        "padded": f"{last}.expand({full})",
    }[how]
    if how == "padded":
        text = f"torch.nn.functional.pad({text}, (0, {ROOM}))[..., :{full[3]}]"
    return (f"attn_mask = {text}",), ["attn_mask=attn_mask"] + ["is_causal=True"] * causal, reads


@lru_cache(maxsize=4096)
def rank(problem: AnyProblem, said: str, how: str, narrowed: tuple[int, ...] = AXES) -> int:
    """Number of dimensions of attn_mask, -1 without one."""
    if how != "narrow":
        return -1 if said == "auto" and dense_text(problem)[0] in ("", "is_causal=True") else len(AXES)
    bias = None if problem.bias is None else torch.zeros(shapes(problem)["bias"], dtype=problem.torch_dtype)
    mask, _ = mask_arguments(problem, bias, torch.device("cpu"), said)
    return -1 if mask is None else shaped(mask, problem, how, narrowed).dim()


@lru_cache(maxsize=64)
def _same_axes(problem: AnyProblem) -> frozenset[int]:
    """The axes along which the mask of a problem is the same; of a mask on the CPU, so that no device is waited for."""
    mask = dense_mask(problem)
    return frozenset(axis for axis in AXES if _same_along(mask, axis))


def _same_along(mask: Tensor, axis: int) -> bool:
    return mask.shape[axis] > 0 and bool((mask == mask.narrow(axis, 0, 1)).all())
