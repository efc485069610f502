"""torch.sdpa.*: torch.nn.functional.scaled_dot_product_attention, one target per backend, pinned so that none falls
back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fuzz.core.case import Case
from fuzz.core.script_call import Text, options
from fuzz.core.support import Rule, Support
from fuzz.core.surface import Surface
from fuzz.core.target import Device, Tensors, Variant
from fuzz.targets.autograd import FLAGGED, AutogradTarget
from fuzz.targets.mask_tensors import AXES, SAID, SHAPES, expanded_heads, mask_arguments, mask_text, rank, says, shaped
from fuzz.targets.options import Options, Value
from oracles.masks import Causal, Full
from oracles.numerics import CPU_FLASH, CUDNN, EFFICIENT, EXACT, FLASH_2, Numerics
from oracles.problem import AnyProblem, Dtype

_DENSE = Support(bias=True, bias_grad=True, softcap=False, max_pairs=1 << 24)
_HALF: tuple[Dtype, ...] = ("float16", "bfloat16")


def _nothing(case: Case) -> bool:
    return not (case.problem.len_q and case.problem.len_k)


def _plain_mask(case: Case) -> bool:
    p = case.problem
    return p.bias is None and not p.ragged and (p.mask == Full() or p.mask == Causal())


OPTIONS = Options(mask=SAID, shape=SHAPES, gqa=("auto", "always", "expanded"))
_SURFACE = Surface.of_schema(
    torch.ops.aten.scaled_dot_product_attention.default._schema,
    "scaled_dot_product_attention",
    never={"dropout_p": "above 0 the result is random, and the reference knows no dropout"},
)


class TorchSdpa(AutogradTarget):
    """One backend on one device."""

    def __init__(
        self,
        backend: str,
        device: Device,
        support: Support,
        numerics: Numerics,
        proof: str,
        rules: tuple[Rule, ...] = (),
        deterministic: bool = True,
        surface: Surface = _SURFACE,
    ) -> None:
        self.name = f"torch.sdpa.{backend}"
        self.device = device
        self.summary = f"scaled_dot_product_attention, {backend} backend on {device}"
        self.support = support
        self.numerics = numerics
        self.proof = (proof, self.pinned_name(backend)) if proof else ()
        self.rules = (*_EVERYWHERE, *rules, _BOTH, _BOTH_OF_NOTHING, _MASK_GRADIENT_OF_NOTHING)
        self.deterministic = deterministic
        self.backend = {
            "math": SDPBackend.MATH,
            "flash": SDPBackend.FLASH_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION,
            "cudnn": SDPBackend.CUDNN_ATTENTION,
        }[backend]
        self.pairs_per_second = 2e7 if device == "host" else 1e9
        self.surface = surface
        self.takes_mask = support.masks is None
        self.narrowed = AXES if device == "host" else AXES[:3]  # on a GPU the last axis of a mask needs stride 1

    @staticmethod
    def pinned_name(backend: str) -> str:
        """Under sdpa_kernel([one backend]) PyTorch raises rather than run another one."""
        return f"sdpa_kernel([{backend}])"

    @property
    def pinned(self) -> str:
        """The pin itself."""
        return self.pinned_name(self.name.rsplit(".", 1)[1])

    def native_masks(self, dtype: Dtype, dim: int) -> tuple[str, ...]:
        """See Target: what a flag says, or none."""
        return FLAGGED

    def variants_for(self, problem: AnyProblem) -> tuple[Variant, ...]:
        """See Target: every way to say the mask, in every shape, and the heads in another way than the problem has."""
        offered: dict[str, tuple[Value, ...]] = {"mask": says(problem)}
        if self.takes_mask:
            offered["shape"] = SHAPES[1:]
        if problem.group == 1:
            offered["gqa"] = ("always",)
        elif self.numerics.heads == "input" or not problem.backward or problem.dtype == "float32":
            offered["gqa"] = ("expanded",)  # autograd sums dK and dV of the group in their dtype
        return OPTIONS.draws(**offered)

    def forward(self, case: Case, tensors: Tensors) -> tuple[Tensor, Tensor | None]:
        """O; this interface gives no LSE."""
        p, options = case.problem, OPTIONS.of(case)
        mask, causal = mask_arguments(p, tensors.bias, tensors.q.device, options["mask"])
        if mask is not None:
            mask = shaped(mask, p, options["shape"], self.narrowed)
        k, v, gqa = tensors.k, tensors.v, p.group > 1 or options["gqa"] == "always"
        if options["gqa"] == "expanded":
            k, v, gqa = expanded_heads(k, p.group), expanded_heads(v, p.group), False
        with sdpa_kernel([self.backend]):
            o = self.surface.call(
                torch.nn.functional.scaled_dot_product_attention,
                tensors.q,
                k,
                v,
                mask,
                is_causal=causal,
                scale=p.scale,
                enable_gqa=gqa,
            )
        return o, None

    def surfaces(self) -> tuple[Surface, ...]:
        """See Target."""
        return (self.surface,)

    def script_call(self, case: Case) -> Text:
        """`forward` as text."""
        p, given = case.problem, OPTIONS.of(case)
        lines, mask, reads = mask_text(p, given["mask"], given["shape"], self.narrowed)
        said = options(p)
        if given["gqa"] == "expanded":
            said.remove("enable_gqa=True")
            lines += tuple(f"{x} = {x}[:, :, None].expand(-1, -1, {p.group}, -1, -1).flatten(1, 2)" for x in ("k", "v"))
        elif given["gqa"] == "always":
            said.append("enable_gqa=True")
        arguments = ", ".join(["q", "k", "v", *mask, *said])
        call = (
            *lines,
            f"with sdpa_kernel([SDPBackend.{self.backend.name}]):",
            f"    o = torch.nn.functional.scaled_dot_product_attention({arguments})",
        )
        return Text(call, ("from torch.nn.attention import SDPBackend, sdpa_kernel",), mask=reads)


_EVERYWHERE = (
    OPTIONS.rule(),
    Rule(
        "options for a mask, or heads, that the problem does not have",
        lambda c: not _useful(c.problem, OPTIONS.of(c)),
    ),
    Rule(
        "a bias of another dtype than the inputs",
        lambda c: c.problem.bias is not None and c.problem.bias.dtype == "float32" and c.problem.dtype != "float32",
    ),
)
_BOTH = Rule(
    "attn_mask beside is_causal: 'An error is thrown if both attn_mask and is_causal are set'",
    lambda c: OPTIONS.of(c)["mask"] == "both" and not _nothing(c),
    "refuses",
)
_BOTH_OF_NOTHING = Rule(
    "attn_mask beside is_causal without any query or key: PyTorch returns zeros before it looks at masks",
    lambda c: OPTIONS.of(c)["mask"] == "both" and _nothing(c),
)
_MASK_GRADIENT_OF_NOTHING = Rule(
    "the gradient of attn_mask alone without any query or key: newer versions of PyTorch return zeros without one",
    lambda c: _nothing(c) and c.problem.backward and {"q", "k", "v"} <= set(c.inputs.detached),
)
_TENSOR = Rule("attn_mask", lambda c: OPTIONS.of(c)["mask"] in ("bool", "float"), "refuses")
_RANK_3 = Rule("attn_mask of three dimensions", lambda c: _rank(c) == 3, "refuses")
_PLAIN = frozenset({"full", "causal"})
_NO_MASK = Rule("any mask but is_causal, any bias, any padding", lambda c: not _plain_mask(c), "cannot")


_BIAS_OF_ONE_COLUMN = Rule(
    "a bias with one column and no mask: its last dimension is expanded, with stride 0",
    lambda c: (
        c.problem.bias is not None and not c.problem.bias.cols and c.problem.mask == Full() and not c.problem.ragged
    ),
)
_LAST_STRIDE = Rule(
    "q, k or v whose last dimension has another stride than 1",
    lambda c: any(_last_stride(c, name) != 1 for name in _given_as_they_are(c)),
    "refuses",
)


def targets() -> list[TorchSdpa]:
    """Every backend on every kind of device."""
    cpu = [
        TorchSdpa("math", "host", _DENSE, EXACT, ""),
        TorchSdpa(
            "flash",
            "host",
            replace(_DENSE, bias_grad=False, dim_v_differs=False, zero_lengths=False),
            CPU_FLASH,
            "FlashAttentionForCpu",
            (_LAST_STRIDE, _RANK_3),
        ),
    ]
    cuda = [
        TorchSdpa("math", "cuda", _DENSE, EXACT, ""),
        TorchSdpa(
            "flash",
            "cuda",
            replace(
                _DENSE,
                dtypes=_HALF,
                masks=_PLAIN,
                ragged=False,
                bias=False,
                bias_grad=False,
                dim_v_differs=False,
                zero_lengths=False,
                strides=False,  # pointers off 16 bytes end in "misaligned address" and take the device with them
            ),
            FLASH_2,
            "ScaledDotProductFlashAttention",
            (_NO_MASK, _TENSOR, Rule("is_causal with len_q ≠ len_k", _causal_unequal, "refuses")),
            deterministic=False,  # its backward adds dQ with atomics, unless deterministic algorithms are asked for
        ),
        TorchSdpa(
            "efficient",
            "cuda",
            replace(_DENSE, dim=(8, 256, 8), gqa=False, zero_lengths=False, strides=False),
            EFFICIENT,
            "ScaledDotProductEfficientAttention",
            (_BIAS_OF_ONE_COLUMN,),
            deterministic=False,  # PyTorch says so itself: its backward adds with atomics
        ),
        TorchSdpa(
            "cudnn",
            "cuda",
            replace(_DENSE, dtypes=_HALF, dim=(8, 128, 8), bias_grad=False, zero_lengths=False, strides=False),
            CUDNN,
            "ScaledDotProductCudnnAttention",
            (
                _BIAS_OF_ONE_COLUMN,
                Rule("sequences of length 1", lambda c: 1 in (c.problem.len_q, c.problem.len_k)),
                # seen with torch 2.11: no kernel for three dimensions, IndexError for one or none
                Rule("attn_mask with axes of 1 left out", lambda c: OPTIONS.of(c)["shape"] == "narrow"),
            ),
            deterministic=False,  # as PyTorch says of its backward
        ),
    ]
    return [*cpu, *cuda]


def _useful(problem: AnyProblem, options: dict[str, Any]) -> bool:
    """True if the problem can be said so."""
    heads = {"auto": True, "always": problem.group == 1, "expanded": problem.group > 1}
    return options["mask"] in ("auto", *says(problem)) and heads[options["gqa"]]


def _rank(case: Case) -> int:
    options = OPTIONS.of(case)
    return rank(case.problem, options["mask"], options["shape"])


def _given_as_they_are(case: Case) -> tuple[str, ...]:
    """The tensors among q, k and v that are no copies: heads that are repeated are, unless one is repeated for all."""
    copied = OPTIONS.of(case)["gqa"] == "expanded" and case.problem.heads_kv > 1
    return ("q",) if copied else ("q", "k", "v")


def _last_stride(case: Case, name: str) -> int:
    """Stride of the head dim: with order bhds it is the sequence's length and the padding after it, unless all rows of
    the sequence are one."""
    store = getattr(case.inputs, name)
    length = case.problem.len_q if name == "q" else case.problem.len_k
    return 1 if store.order != "bhds" or "s" in store.shared else max(length, 1) + store.pad


def _causal_unequal(case: Case) -> bool:
    p = case.problem
    return p.mask == Causal() and p.len_q != p.len_k
