"""xformers.*: xformers.ops.memory_efficient_attention, one target per operator, pinned so that none falls back.

Written from the signatures of 0.0.35, and not yet run on a GPU. Padded sequences say their mask by the bias class that
is just it, else by a tensor; packed ones by a block-diagonal mask over one batch of all tokens.

What its words leave open: LowerTriangularMask is aligned at the top left by its illustration; the flash operator takes
it for sequences with as many queries as keys only ("_check_needs_no_topleft"), so elsewhere it is asked to refuse.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fuzz.core.case import Case
from fuzz.core.support import Rule, Support
from fuzz.core.surface import Surface
from fuzz.core.target import Device, Tensors, Variant
from fuzz.targets.autograd import AutogradTarget
from fuzz.targets.mask_tensors import mask_arguments
from fuzz.targets.options import Options, Value
from oracles.masks import Causal, Full, Window
from oracles.numerics import EFFICIENT, FLASH_2, Numerics
from oracles.problem import AnyProblem

ALIGNMENT = 8  # elements that the rows of a bias tensor are a multiple of
OPTIONS = Options(mask=("auto", "tensor"), local=("window", "causal_local"))
SURFACE = Surface.declared(
    "memory_efficient_attention(query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None, output_dtype=None)",
    never={
        "p": "above 0 the result is random, and the reference knows no dropout",
        "output_dtype": "another dtype of O than that of the inputs, which no Problem asks",
    },
)
_COMMON: dict[str, Any] = {"layouts": ("padded", "packed"), "gqa": False, "zero_lengths": False, "strides": False}
SUPPORT = {
    "cutlass": Support(bias=True, bias_grad=True, dim=(8, 256, 8), **_COMMON),
    "flash": Support(
        dtypes=("bfloat16", "float16"),
        masks=frozenset({"full", "causal", "window"}),
        ragged=False,
        dim=(8, 256, 8),
        dim_v_differs=False,
        **_COMMON,
    ),
}
NUMERICS: dict[str, Numerics] = {"cutlass": EFFICIENT, "flash": FLASH_2}


class XFormers(AutogradTarget):
    """One operator: 'cutlass' or 'flash'."""

    device: Device = "cuda"
    proof: tuple[str, ...] = ("_fMHA", "pinned")
    deterministic = False  # both add dQ with atomics
    pairs_per_second = 1e9

    def __init__(self, operator: str) -> None:
        self.name = f"xformers.{operator}"
        self.operator = operator
        self.summary = f"memory_efficient_attention, {operator} operator (not yet run on a GPU)"
        self.support = SUPPORT[operator]
        self.numerics = NUMERICS[operator]
        self.rules = (
            OPTIONS.rule(),
            Rule("options that the problem has no use for", lambda c: not self._useful(c.problem, OPTIONS.of(c))),
            Rule("a bias of another dtype than the inputs", _other_bias),
            Rule("packed sequences with more queries than keys, aligned at the bottom right", _more_queries, "refuses"),
            Rule("packed sequences with a bias, or a mask that is neither full nor causal", _no_blocks),
        )
        if operator == "flash":
            self.rules += (
                Rule("windows that are open, or aligned at the top left", _no_window),
                Rule("a triangle at the top left, with more queries than keys or fewer", _top_left, "refuses"),
            )

    @property
    def pinned(self) -> str:
        """With `op` given, xFormers raises rather than run another operator."""
        return f"pinned op={self.operator}"

    def missing(self) -> str | None:
        """Reason why it cannot run on this machine, or None."""
        if find_spec("xformers") is None:
            return "needs xformers (pip install xformers)"
        if find_spec("flash_attn") is not None and find_spec("flash_attn.flash_attn_interface") is None:
            return "cannot be imported beside flash-attn-4, whose package flash_attn it takes for FlashAttention-2"
        return super().missing()

    def surfaces(self) -> tuple[Surface, ...]:
        """See Target."""
        return (SURFACE,)

    def variants_for(self, problem: AnyProblem) -> tuple[Variant, ...]:
        """See Target."""
        offered: dict[str, tuple[Value, ...]] = {}
        for name, value in (("mask", "tensor"), ("local", "causal_local")):
            offered[name] = (
                (value,) if self._useful(problem, {"mask": "auto", "local": "window"} | {name: value}) else ()
            )
        return OPTIONS.draws(**offered)

    def forward(self, case: Case, tensors: Tensors) -> tuple[Tensor, Tensor | None]:
        """O; this function gives no LSE."""
        from xformers.ops import fmha, memory_efficient_attention

        p, options = case.problem, OPTIONS.of(case)
        packed = p.layout == "packed"
        q, k, v = (x[None] if packed else x.transpose(1, 2) for x in (tensors.q, tensors.k, tensors.v))
        module = fmha.cutlass if self.operator == "cutlass" else fmha.flash
        operators = (module.FwOp, module.BwOp)
        bias = self._bias(p, options, tensors.bias, q.device)
        o = SURFACE.call(memory_efficient_attention, q, k, v, attn_bias=bias, scale=p.scale, op=operators)
        return (o[0] if packed else o.transpose(1, 2)), None

    def _bias(self, p: AnyProblem, options: dict[str, Any], bias: Tensor | None, device: torch.device) -> Any:
        """attn_bias: a class of xFormers, a tensor (batch, heads, len_q, len_k), or None."""
        from xformers.ops.fmha import attn_bias as known

        if p.layout == "packed":
            blocks = known.BlockDiagonalMask.from_seqlens(p.lengths_q, p.lengths_k, device=device)
            if p.mask == Full():
                return blocks
            bottom = p.mask.align == "bottom_right"  # type: ignore[union-attr]
            return blocks.make_causal_from_bottomright() if bottom else blocks.make_causal()
        if not _by_tensor(p, options | {"mask": "tensor"} if self._window_by_tensor(p) else options):
            match p.mask:
                case Full():
                    return None
                case Causal(align):
                    bottom = align == "bottom_right"
                    return known.LowerTriangularFromBottomRightMask() if bottom else known.LowerTriangularMask()
                case Window(int(left), 0, _) if options["local"] == "causal_local":
                    return known.LowerTriangularFromBottomRightMask().make_local_attention(left + 1)
                case Window(int(left), int(right), _):
                    return known.LocalAttentionFromBottomRightMask(left, right)
        mask, _ = mask_arguments(p, bias, device, "float")
        assert mask is not None
        whole = mask.expand(p.batch, p.heads_q, p.len_q, p.len_k)
        return F.pad(whole, (0, -p.len_k % ALIGNMENT))[..., : p.len_k]

    def _window_by_tensor(self, p: AnyProblem) -> bool:
        """The cutlass operator takes no class of windows in its backward pass."""
        return self.operator == "cutlass" and isinstance(p.mask, Window)

    def _useful(self, p: AnyProblem, options: dict[str, Any]) -> bool:
        if options["mask"] == "tensor" and (self.operator == "flash" or p.layout == "packed"):
            return False
        local = isinstance(p.mask, Window) and p.mask.right == 0 and p.mask.left is not None
        return options["local"] == "window" or (self.operator == "flash" and p.layout == "padded" and local)


def targets() -> list[XFormers]:
    """Both operators."""
    return [XFormers("cutlass"), XFormers("flash")]


def _by_tensor(p: AnyProblem, options: dict[str, Any]) -> bool:
    """True if the mask is said by a tensor: asked for, with a bias, or no class is just it."""
    by_class = isinstance(p.mask, Full | Causal) or (isinstance(p.mask, Window) and options["mask"] == "auto")
    window = isinstance(p.mask, Window) and (p.mask.align != "bottom_right" or None in (p.mask.left, p.mask.right))
    return options["mask"] == "tensor" or p.bias is not None or p.ragged or not by_class or window


def _other_bias(case: Case) -> bool:
    p = case.problem
    return p.bias is not None and p.bias.dtype == "float32" and p.dtype != "float32"


def _no_blocks(case: Case) -> bool:
    p = case.problem
    return p.layout == "packed" and (p.bias is not None or not isinstance(p.mask, Full | Causal))


def _more_queries(case: Case) -> bool:
    p = case.problem
    longer = any(q > k for q, k in zip(p.lengths_q, p.lengths_k, strict=True))
    return p.layout == "packed" and longer and getattr(p.mask, "align", "") == "bottom_right"


def _no_window(case: Case) -> bool:
    mask = case.problem.mask
    return isinstance(mask, Window) and (mask.align != "bottom_right" or None in (mask.left, mask.right))


def _top_left(case: Case) -> bool:
    p = case.problem
    return isinstance(p.mask, Causal) and p.mask.align == "top_left" and p.lengths_q != p.lengths_k
