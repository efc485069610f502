"""Injection points: the steps that a mutant replaces, and what mutants replace them with, by name.

As in kernels.sdpa.injection: kernels take each step as a constexpr function, steps of the host are plain functions, and
the custom operators carry only the name of a set of steps; "" names the correct one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from kernels.dynamic_mask.bias_gradient import shared_batches, shared_heads
from kernels.dynamic_mask.dkdv import finish_gradient, heads_of
from kernels.dynamic_mask.forward import store_lse
from kernels.dynamic_mask.scores import score_gradient
from kernels.dynamic_mask.tiles import any_key, list_of, load_mask
from kernels.sdpa.bias_gradient import sum_of_shared
from kernels.sdpa.injection import kv_head_of, state_heads
from kernels.sdpa.launch import Launch
from kernels.sdpa.registry import Registry


def plane_strides(plane: Tensor) -> tuple[int, ...]:
    """Strides of a mask or bias (4-D) that broadcasts where its size is 1."""
    return tuple(0 if size == 1 else stride for size, stride in zip(plane.shape, plane.stride(), strict=True))


def sum_of_parts(parts: Tensor) -> Tensor:
    """The sum over the programs that shared a tile of keys: NOTE [splits] in dkdv.py. (splits, …) to (…)."""
    return parts.sum(0)


def shared_sum(sums: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Columns' sums (batches, heads_kv, len_k) of a bias (1 or batches, 1 or heads_kv, 1, len_k), over what shares
    it."""
    axes = [axis for axis in (0, 1) if shape[axis] == 1]
    return (sums.sum(axes, keepdim=True) if axes else sums)[:, :, None]


def lse_gradient(grad_lse: Tensor | None) -> Tensor | None:
    """The gradient of LSE that backward adds to delta; None where nobody has used LSE."""
    return grad_lse


def launched(launches: list[Launch]) -> list[Launch]:
    """The launches of a pass."""
    return launches


def bias_is_answered(wanted: bool) -> bool:
    """Whether backward answers with a gradient of the bias; wanted: there is a bias, and it requires one."""
    return wanted


@dataclass(frozen=True)
class InjectionPoints:
    """One function for each replaceable step: those of the kernels, then those of the host. Defaults are correct."""

    load_mask: Any = load_mask
    any_key_forward: Any = any_key
    any_key_backward: Any = any_key
    list_of: Any = list_of
    kv_head_of: Any = kv_head_of
    store_lse: Any = store_lse
    score_gradient: Any = score_gradient
    heads_of: Any = heads_of
    finish_dk: Any = finish_gradient
    finish_dq: Any = finish_gradient
    shared_batches: Any = shared_batches
    shared_heads: Any = shared_heads
    sum_of_shared: Any = sum_of_shared

    mask_strides: Callable[[Tensor], tuple[int, ...]] = plane_strides
    bias_strides: Callable[[Tensor], tuple[int, ...]] = plane_strides
    state_heads: Callable[[int, int], int] = state_heads
    sum_of_parts: Callable[[Tensor], Tensor] = sum_of_parts
    shared_sum: Callable[[Tensor, tuple[int, ...]], Tensor] = shared_sum
    lse_gradient: Callable[[Tensor | None], Tensor | None] = lse_gradient
    launches: Callable[[list[Launch]], list[Launch]] = launched
    bias_is_answered: Callable[[bool], bool] = bias_is_answered


_REGISTRY = Registry(InjectionPoints())
register_injection, find_injection = _REGISTRY.register, _REGISTRY.find
