"""flashinfer: prefill attention of FlashInfer, forward only: single_prefill_with_kv_cache for each padded sequence,
BatchPrefillWithRaggedKVCacheWrapper for packed ones.

Written from the signatures of 0.7.2, and not yet run on a GPU. Its kernels are compiled when they are first asked for.

What its words leave open, and how it is read here:

causal        "Whether to apply causal mask", without an alignment; its kernels align at the bottom right. "Only
              effective when custom_mask is not provided": the two are never given together.
lse           "The log sum exp value"; the wrapper names its convention, log2, and takes lse_base="ln". The single call
              has no such parameter: its value is taken as log2.
window_left   "inclusive": a query sees its own key and so many before it.
"""

from __future__ import annotations

import functools
import math
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fuzz.core.case import Case
from fuzz.core.support import Rule, Support
from fuzz.core.surface import Apart, Surface
from fuzz.core.target import Device, Tensors, Variant
from fuzz.targets.autograd import AutogradTarget
from fuzz.targets.options import Options, Value
from oracles.masks import Causal, Full, Window, varies_by_head
from oracles.numerics import FLASH_2
from oracles.problem import AnyProblem, cumulative, dense_mask

DIMS = (64, 128, 256)
WORKSPACE = 128 << 20  # bytes, as its examples have it
SUPPORT = Support(
    dtypes=("bfloat16", "float16"),
    layouts=("padded", "packed"),
    ragged=False,
    softcap=True,
    dim=(64, 256, 64),
    dim_v_differs=False,
    zero_lengths=False,
    strides=False,
    lse=True,
    backward=False,
)
OPTIONS = Options(
    mask=("auto", "custom", "bits"),
    layout=("NHD", "HND"),
    lse=(True, False),
    backend=("auto", "fa2"),
    splits=("auto", "one"),
)
_QUANTISED = "for inputs of 8 or 4 bits, which no Problem has"
_ROPE = "positions encoded in the kernel, which no Problem asks"
_NEVER = {
    "o_dtype": _QUANTISED,
    "scale_q": _QUANTISED,
    "scale_k": _QUANTISED,
    "scale_v": _QUANTISED,
    "kv_cache_sf": _QUANTISED,
    "k_scale": _QUANTISED,
    "v_scale": _QUANTISED,
    "pos_encoding_mode": _ROPE,
    "rope_scale": _ROPE,
    "rope_theta": _ROPE,
    "use_fp16_qk_reduction": "scores rounded otherwise than declared",
}
_ONE_MASK = (
    Apart(("causal", "window_left"), ("custom_mask", "packed_custom_mask"), "flags are 'only effective' without it"),
    Apart(("custom_mask",), ("packed_custom_mask",), "'if provided, the custom_mask will be ignored'"),
)
SINGLE = Surface.declared(
    "single_prefill_with_kv_cache(q, k, v, scale_q=None, scale_k=None, scale_v=None, o_dtype=None, custom_mask=None, "
    "packed_custom_mask=None, causal=False, kv_layout='NHD', pos_encoding_mode='NONE', use_fp16_qk_reduction=False, "
    "sm_scale=None, window_left=-1, logits_soft_cap=None, rope_scale=None, rope_theta=None, backend='auto', "
    "return_lse=False, kv_cache_sf=None, k_scale=None, v_scale=None)",
    never=_NEVER,
    apart=_ONE_MASK,
)

_LENGTHS = "lengths that its documentation leaves to other back ends, or to CUDA graphs"
_ITEMS = "several items in one sequence, which no Problem has"
PLAN = Surface.declared(
    "plan(qo_indptr, kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo=None, custom_mask=None, "
    "packed_custom_mask=None, causal=False, pos_encoding_mode='NONE', use_fp16_qk_reduction=False, window_left=-1, "
    "logits_soft_cap=None, sm_scale=None, rope_scale=None, rope_theta=None, q_data_type='float16', kv_data_type=None, "
    "o_data_type=None, non_blocking=True, prefix_len_ptr=None, token_pos_in_items_ptr=None, token_pos_in_items_len=0, "
    "max_item_len_ptr=None, fixed_split_size=None, disable_split_kv=False, seq_lens=None, seq_lens_q=None, "
    "max_token_per_sequence=None, max_sequence_kv=None, v_indptr=None, o_indptr=None, uniform_q_len=None)",
    never={name: why for name, why in _NEVER.items() if name in ("pos_encoding_mode", "rope_scale", "rope_theta")}
    | {
        "use_fp16_qk_reduction": _NEVER["use_fp16_qk_reduction"],
        "head_dim_vo": "dim_v is dim here: its kernels know one other pair",
        "kv_data_type": _QUANTISED,
        "o_data_type": _QUANTISED,
        "non_blocking": "copies of host tensors, and these are on the GPU",
        "prefix_len_ptr": _ITEMS,
        "token_pos_in_items_ptr": _ITEMS,
        "token_pos_in_items_len": _ITEMS,
        "max_item_len_ptr": _ITEMS,
        "fixed_split_size": "splits round otherwise than declared",
        "seq_lens": _LENGTHS,
        "seq_lens_q": _LENGTHS,
        "max_token_per_sequence": _LENGTHS,
        "max_sequence_kv": _LENGTHS,
        "v_indptr": _LENGTHS,
        "o_indptr": _LENGTHS,
        "uniform_q_len": _LENGTHS,
    },
    apart=_ONE_MASK,
)


class FlashInfer(AutogradTarget):
    """Single prefill for padded problems, sequence by sequence."""

    name = "flashinfer.single_prefill"
    device: Device = "cuda"
    summary = "single_prefill_with_kv_cache, forward only (not yet run on a GPU)"
    support = Support(**(SUPPORT.__dict__ | {"layouts": ("padded",)}))
    numerics = FLASH_2
    proof: tuple[str, ...] = ("flashinfer",)
    pairs_per_second = 1e8

    def __init__(self) -> None:
        self.rules = (
            OPTIONS.rule(),
            Rule(f"head dims other than {', '.join(map(str, DIMS))}", lambda c: c.problem.dim not in DIMS),
            Rule("masks that vary by head: custom_mask is (len_q, len_k)", lambda c: varies_by_head(c.problem.mask)),
            Rule("a scale of 0 or less", lambda c: c.problem.scale is not None and c.problem.scale <= 0),
        )

    @property
    def pinned(self) -> str:
        """The function has no other implementation than FlashInfer's."""
        return "flashinfer"

    def missing(self) -> str | None:
        """Reason why it cannot run on this machine, or None."""
        return "needs flashinfer-python (pip install flashinfer-python)" if not _there() else super().missing()

    def surfaces(self) -> tuple[Surface, ...]:
        """See Target."""
        return (SINGLE,)

    def variants_for(self, problem: AnyProblem) -> tuple[Variant, ...]:
        """See Target."""
        offered: dict[str, tuple[Value, ...]] = {"mask": ("custom", "bits"), "layout": ("HND",), "lse": (False,)}
        return OPTIONS.draws(**offered, backend=("fa2",))

    def prepare(self, case: Case, tensors: Tensors) -> None:
        """One whole run, which compiles."""
        self.run(case, tensors)

    def forward(self, case: Case, tensors: Tensors) -> tuple[Tensor, Tensor | None]:
        """O and, unless it is not asked for, LSE."""
        p, options = case.problem, OPTIONS.of(case)
        kept = dense_mask(p, tensors.q.device)
        answers = [self._one(p, options, tensors, b, kept[b if kept.shape[0] > 1 else 0, 0]) for b in range(p.batch)]
        o = torch.stack([answer[0] for answer in answers]).transpose(1, 2)
        if not options["lse"]:
            return o, None
        return o, torch.stack([answer[1] for answer in answers]).transpose(1, 2) * math.log(2)

    def _one(
        self, p: AnyProblem, options: dict[str, Any], tensors: Tensors, b: int, kept: Tensor
    ) -> tuple[Tensor, ...]:
        """O (len_q, heads_q, dim) and, where asked for, LSE (len_q, heads_q) of sequence b, whose mask is `kept`."""
        q, k, v = tensors.q[b].transpose(0, 1), tensors.k[b], tensors.v[b]
        if options["layout"] == "NHD":
            k, v = k.transpose(0, 1), v.transpose(0, 1)
        flags = None if options["mask"] != "auto" else flags_of(p)
        given = _masked(options, kept) if flags is None else flags
        answer = SINGLE.call(
            _single,
            q,
            k,
            v,
            kv_layout=options["layout"],
            sm_scale=p.scale,
            logits_soft_cap=p.softcap or None,
            return_lse=options["lse"],
            backend=options["backend"],
            **given,
        )
        return answer if options["lse"] else (answer,)


class FlashInferRagged(FlashInfer):
    """The wrapper for packed sequences: plan, then run."""

    name = "flashinfer.ragged_prefill"
    summary = "BatchPrefillWithRaggedKVCacheWrapper, forward only (not yet run on a GPU)"
    support = Support(**(SUPPORT.__dict__ | {"layouts": ("packed",)}))

    def surfaces(self) -> tuple[Surface, ...]:
        """See Target."""
        return (PLAN,)

    def variants_for(self, problem: AnyProblem) -> tuple[Variant, ...]:
        """See Target: K and V have one layout."""
        return OPTIONS.draws(mask=("custom", "bits"), lse=(False,), backend=("fa2",), splits=("one",))

    def forward(self, case: Case, tensors: Tensors) -> tuple[Tensor, Tensor | None]:
        """O and, unless it is not asked for, LSE (heads_q, total_q)."""
        p, options = case.problem, OPTIONS.of(case)
        device = tensors.q.device
        flags = None if options["mask"] != "auto" else flags_of(p)
        kept = dense_mask(p, device)
        parts = [
            kept[b if kept.shape[0] > 1 else 0, 0, :n_q, :n_k].flatten()
            for b, (n_q, n_k) in enumerate(zip(p.lengths_q, p.lengths_k, strict=True))
        ]
        starts = [torch.tensor(cumulative(x), dtype=torch.int32, device=device) for x in (p.lengths_q, p.lengths_k)]
        wrapper = PLAN.call(
            functools.partial(_plan, device, options["backend"]),
            *starts,
            p.heads_q,
            p.heads_kv,
            p.dim,
            sm_scale=p.scale,
            logits_soft_cap=p.softcap or None,
            q_data_type=p.torch_dtype,
            disable_split_kv=options["splits"] == "one",
            **(_masked(options, torch.cat(parts), parts) if flags is None else flags),
        )
        answer = wrapper.run(tensors.q, tensors.k, tensors.v, return_lse=options["lse"], lse_base="ln")
        return (answer[0], answer[1].transpose(0, 1)) if options["lse"] else (answer, None)


def targets() -> list[FlashInfer]:
    """Both."""
    return [FlashInfer(), FlashInferRagged()]


def flags_of(p: AnyProblem) -> dict[str, Any] | None:
    """`causal` and `window_left` where they say exactly the mask, aligned at the bottom right; else None."""
    mask = p.mask
    if mask == Full():
        return {}
    if not isinstance(mask, Causal | Window) or (mask.align != "bottom_right" and p.lengths_q != p.lengths_k):
        return None
    if isinstance(mask, Causal):
        return {"causal": True}
    if mask.left is None or mask.right not in (0, None):
        return None
    return {"window_left": mask.left} | ({"causal": True} if mask.right == 0 else {})


def packed_bits(mask: Tensor) -> Tensor:
    """uint8 of a flat bool mask, eight to a byte, the first one lowest; as flashinfer.quantization.packbits."""
    bits = F.pad(mask.to(torch.uint8), (0, -mask.numel() % 8)).view(-1, 8)
    return (bits << torch.arange(8, dtype=torch.uint8, device=mask.device)).sum(1, dtype=torch.uint8)


def _masked(options: dict[str, Any], mask: Tensor, parts: list[Tensor] | None = None) -> dict[str, Any]:
    """custom_mask, or the same in bits, each sequence of `parts` from a byte of its own."""
    if options["mask"] != "bits":
        return {"custom_mask": mask}
    return {"packed_custom_mask": torch.cat([packed_bits(part.flatten()) for part in parts or [mask]])}


def _single(*arguments: Any, **options: Any) -> Any:
    from flashinfer import single_prefill_with_kv_cache

    return single_prefill_with_kv_cache(*arguments, **options)


def _plan(device: torch.device, backend: str, *arguments: Any, **options: Any) -> Any:
    """The wrapper, with a plan."""
    wrapper = _wrapper(device, backend)
    wrapper.plan(*arguments, **options)
    return wrapper


@functools.cache
def _wrapper(device: torch.device, backend: str) -> Any:
    from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

    workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=device)
    return BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD", backend=backend)


def _there() -> bool:
    return find_spec("flashinfer") is not None
