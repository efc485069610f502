"""From a Case to what the graphs are given: the mask as a band, by flags or added, the bias, the lengths."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fuzz.core.case import Case
from fuzz.targets.mask_tensors import mask_arguments
from fuzz.targets.options import Options
from oracles.masks import Causal, Full, Window
from oracles.problem import AnyProblem, shapes

OPTIONS = Options(mask=("band", "flags", "bias"), lengths=("auto", "given"), ordered=(False, True))


def band_of(p: AnyProblem) -> dict[str, Any]:
    """The mask as a diagonal band."""
    import cudnn

    if p.mask == Full():
        return {}
    left, right = (None, 0) if isinstance(p.mask, Causal) else (p.mask.left, p.mask.right)  # type: ignore[union-attr]
    name = p.mask.align.upper()  # type: ignore[union-attr]
    found: dict[str, Any] = {"diagonal_alignment": getattr(cudnn.diagonal_alignment, name)}
    if left is not None:
        found["diagonal_band_left_bound"] = left + 1
    if right is not None:
        found["diagonal_band_right_bound"] = right
    return found


def flags_of(p: AnyProblem) -> dict[str, Any]:
    """The mask by the deprecated arguments."""
    if p.mask == Full():
        return {}
    name = "use_causal_mask" if p.mask.align == "top_left" else "use_causal_mask_bottom_right"  # type: ignore[union-attr]
    left, right = getattr(p.mask, "left", None), getattr(p.mask, "right", 0)
    return ({name: True} if right == 0 else {}) | ({} if left is None else {"sliding_window_length": left + 1})


def side_inputs(case: Case, bias: Tensor | None, device: torch.device) -> dict[str, Tensor]:
    """The bias and the lengths, where they are given: (1|batch, 1|heads_q, len_q, len_k) and int32 (batch, 1, 1, 1)."""
    p, options = case.problem, OPTIONS.of(case)
    found: dict[str, Tensor] = {}
    if by_bias(p, options["mask"]):
        mask, _ = mask_arguments(p, bias, device, "float")
        assert mask is not None
        bias = mask
    if bias is not None:
        found["bias"] = bias.expand(*bias.shape[:2], p.len_q, p.len_k).contiguous()
    if p.ragged or options["lengths"] == "given":
        for name, lengths in (("seq_len_q", p.lengths_q), ("seq_len_kv", p.lengths_k)):
            found[name] = torch.tensor(lengths, dtype=torch.int32, device=device).view(-1, 1, 1, 1)
    return found


def empty_bias(p: AnyProblem) -> Tensor | None:
    return None if p.bias is None else torch.zeros(shapes(p)["bias"], dtype=p.torch_dtype)


def says(p: AnyProblem, how: str) -> bool:
    """True if the mask can be said so, beside the problem's bias."""
    if how == "bias":
        return p.mask != Full() or p.ragged
    if how == "flags":
        align = getattr(p.mask, "align", "top_left")
        if isinstance(p.mask, Window):
            open_right = p.mask.right is None and p.mask.left is not None and align == "top_left"
            return p.bias is None and (p.mask.right == 0 or open_right)
        return isinstance(p.mask, Causal) and not (align == "bottom_right" and p.bias is not None)
    return True


def by_bias(p: AnyProblem, how: str) -> bool:
    """True if the mask is added: asked for, or no band."""
    return how == "bias" or not isinstance(p.mask, Full | Causal | Window)


def useful(p: AnyProblem, options: dict[str, Any]) -> bool:
    if options["lengths"] == "given" and p.ragged:
        return False
    return (not options["ordered"] or p.backward) and (options["mask"] == "band" or says(p, options["mask"]))
