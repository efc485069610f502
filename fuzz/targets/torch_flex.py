"""torch.flex: FlexAttention, eager on a CPU and compiled on a GPU, with block masks built from our token predicate."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from fuzz.core.case import Case
from fuzz.core.case_limits import Size
from fuzz.core.script_call import ScriptError, Text, options
from fuzz.core.support import Rule, Support
from fuzz.core.surface import Apart, Surface
from fuzz.core.target import Device, Tensors, Variant
from fuzz.targets.autograd import AutogradTarget
from fuzz.targets.mask_tensors import expanded_heads
from fuzz.targets.options import Options, Value
from oracles.masks import Full
from oracles.numerics import FLEX_EAGER, TENSOR_CORES
from oracles.problem import AnyProblem, dense_mask

_COMPILED = Support(
    bias=True, bias_grad=True, softcap=True, zero_lengths=False, lse=True, dim=(16, 256, 16), max_pairs=1 << 24
)
_EAGER = replace(_COMPILED, dim=(1, 256, 1), backward=False, bias_grad=False)


OPTIONS = Options(
    mask=("block_mask", "score_mod", "both", "split"),
    block=(128, 16, 48, 256),
    block_n=(128, 16, 64, 256),
    made=("create", "from_kv_blocks", "partial"),
    aux=("lse", "request", "most", "none"),
    gqa=("auto", "always", "expanded"),
    kernel=("auto", "tiles", "backend", "safe"),
)
_ATTENTION = Surface.of(
    flex_attention,
    apart=(Apart(("return_lse",), ("return_aux",), "return_aux replaces return_lse; with both it raises"),),
)
_BLOCK_MASK = Surface.of(
    create_block_mask,
    kernel=False,
    never={
        "_compile": "private; it compiles the classification of blocks, and takes seconds a call",
        "compute_dq_write_order": "read by the FLASH backend alone, which needs FlashAttention-4: flash_attn.cute asks",
        "dq_kv_order": "as compute_dq_write_order",
    },
)
_FROM_BLOCKS = Surface.of(
    BlockMask.from_kv_blocks,
    "BlockMask.from_kv_blocks",
    kernel=False,
    never={
        "compute_q_blocks": "False leaves out the lists of the backward pass",
        "dq_write_order": "as compute_dq_write_order of create_block_mask",
        "dq_write_order_full": "as compute_dq_write_order of create_block_mask",
        "dq_kv_order": "as compute_dq_write_order of create_block_mask",
    },
)
# kernel_options. "safe" promises that every row has a key. PRESCALE_QK rounds otherwise than the declared numerics, and
# BLOCKS_ARE_CONTIGUOUS promises what few masks keep: neither is given. Tiles are small, to fit into shared memory.
_KERNEL = {
    "auto": None,
    "tiles": {"BLOCK_M": 32, "BLOCK_N": 32},
    "backend": {"BACKEND": "TRITON"},
    "safe": {"ROWS_GUARANTEED_SAFE": True},
}
_AUX = {"request": AuxRequest(lse=True), "most": AuxRequest(lse=True, max_scores=True)}
_PARTIAL = "separate_full_blocks"  # which some versions of create_block_mask lack
_TRACING = 0.2  # seconds of a call in eager mode, on one slow core


class TorchFlex(AutogradTarget):
    """flex_attention with score_mod for softcap and bias, block_mask for the mask."""

    def __init__(self, device: Device) -> None:
        self.name = "torch.flex"
        self.device = device
        self.summary = "flex_attention, eager" if device == "host" else "flex_attention, compiled"
        self.support = _EAGER if device == "host" else _COMPILED
        self.numerics = FLEX_EAGER if device == "host" else TENSOR_CORES
        self.rules = (
            OPTIONS.rule(),
            Rule(
                "heads that the problem does not have, or a promise that it does not keep",
                lambda c: not _useful(c.problem, OPTIONS.of(c)),
            ),
        )
        if device == "host":
            self.rules += (Rule("max_scores on a CPU", lambda c: OPTIONS.of(c)["aux"] == "most", "refuses"),)
        self.proof = ("FlexAttention",) if device == "host" else ("CompiledFunction",)
        self.session_size = Size(1 << 15) if device == "host" else None
        self.pairs_per_second = 5e6 if device == "host" else 1e9

    @property
    def pinned(self) -> str:
        """flex_attention has one eager implementation; the compiled one is compiled with fullgraph=True."""
        return "FlexAttention forward" if self.device == "host" else "CompiledFunction forward"

    def prepare(self, case: Case, tensors: Tensors) -> None:
        """On a GPU: one whole run, which compiles for this case's shapes and options. On the host: what a process's
        first call imports and sets up, once."""
        if self.device == "cuda":
            self.run(case, tensors)
        else:
            _warm_up()

    def variants_for(self, problem: AnyProblem) -> tuple[Variant, ...]:
        """See Target: the mask by block_mask, by score_mod, and split between them; blocks of other sizes, made in
        other ways; what is returned; heads; options of the kernels."""
        eager = self.device == "host"
        offered: dict[str, tuple[Value, ...]] = {
            "mask": ("score_mod", "both", "split"),
            "block": (16, 48, 256) if eager else (256,),  # compiled kernels need multiples of their tiles
            "block_n": (16, 64, 256) if eager else (256,),
            "made": ("from_kv_blocks", "partial") if _PARTIAL in _BLOCK_MASK.names else ("from_kv_blocks",),
            "aux": ("request", "most", "none"),
            "kernel": ("tiles", "backend", "safe") if _every_row_has_keys(problem) else ("tiles", "backend"),
        }
        if problem.group == 1:
            offered["gqa"] = ("always",)
        elif self.numerics.heads == "input" or not problem.backward or problem.dtype == "float32":
            offered["gqa"] = ("expanded",)
        return OPTIONS.draws(**offered)

    def may_differ(self, case: Case) -> frozenset[str]:
        """See Target: on a GPU the gradient of what score_mod captures is summed by atomic adds, in any order."""
        return frozenset() if self.device == "host" else frozenset({"dbias"})

    def forward(self, case: Case, tensors: Tensors) -> tuple[Tensor, Tensor | None]:
        """O and, unless it is not asked for, LSE (natural logarithm). max_scores is asked for, and not looked at."""
        p, options = case.problem, OPTIONS.of(case)
        attend = flex_attention if self.device == "host" else _compiled()
        in_block_mask, in_score_mod = _split(p, options["mask"], tensors.q.device)
        block_mask = None if in_block_mask is None else _block_mask(p, in_block_mask, options)
        k, v, gqa = tensors.k, tensors.v, p.group > 1 or options["gqa"] == "always"
        if options["gqa"] == "expanded":
            k, v, gqa = expanded_heads(k, p.group), expanded_heads(v, p.group), False
        answer = _ATTENTION.call(
            attend,
            tensors.q,
            k,
            v,
            score_mod=_score_mod(p, tensors.bias, in_score_mod),
            block_mask=block_mask,
            scale=p.scale,
            enable_gqa=gqa,
            return_lse=options["aux"] == "lse",
            kernel_options=_KERNEL[options["kernel"]],
            return_aux=_AUX.get(options["aux"]),
        )
        if options["aux"] == "none":
            return answer, None
        o, more = answer
        return o, more if options["aux"] == "lse" else more.lse

    def expected_seconds(self, case: Case) -> float:
        """On the host each call is traced anew, whatever its size."""
        return super().expected_seconds(case) + (_TRACING if self.device == "host" else 0.0)

    def surfaces(self) -> tuple[Surface, ...]:
        """See Target."""
        return (_ATTENTION, _BLOCK_MASK, _FROM_BLOCKS)

    def script_call(self, case: Case) -> Text:
        """`forward` as text, for the plain call."""
        if case.variant:
            raise ScriptError(f"{self.name}: no script for the options {case.variant}")
        p = case.problem
        masked, scored = p.mask != Full() or p.ragged, bool(p.softcap or p.bias)
        arguments = ["q", "k", "v"] + ["score_mod=score_mod"] * scored + ["block_mask=block_mask"] * masked
        call = [_SCRIPT_MASK] if masked else []
        if scored:
            lines = [f"    score = {p.softcap} * torch.tanh(score / {p.softcap})"] if p.softcap else []
            added = " + bias[b % bias.shape[0], h % bias.shape[1], q % bias.shape[2], k % bias.shape[3]]"
            call += ["def score_mod(score, b, h, q, k):", *lines, f"    return score{added if p.bias else ''}", ""]
        arguments += options(p)
        call.append(f"o, lse = attend({', '.join([*arguments, 'return_lse=True'])})")
        compiled = "torch.compile(flex_attention, fullgraph=True)" if self.device != "host" else "flex_attention"
        imports = ("from torch.nn.attention.flex_attention import create_block_mask, flex_attention",)
        lines = [line for part in call for line in part.split("\n")]
        return Text(tuple(lines), imports, f"attend = {compiled}", mask=masked, lse=True)


_SCRIPT_MASK = """\
def mask_mod(b, h, q, k):
    return keep[b % keep.shape[0], h % keep.shape[1], q, k]

batch, heads = (size if size > 1 else None for size in keep.shape[:2])
block_mask = create_block_mask(mask_mod, batch, heads, *keep.shape[2:], device=DEVICE)"""


def targets() -> list[TorchFlex]:
    """Eager and compiled."""
    return [TorchFlex("host"), TorchFlex("cuda")]


@functools.cache
def _warm_up() -> None:
    x = torch.zeros(1, 1, 1, 16)
    flex_attention(x, x, x)


@functools.cache
def _compiled():
    import torch._inductor.config  # takes 2 s, and eager mode needs none of it

    torch._dynamo.config.recompile_limit = 10_000
    torch._dynamo.config.specialize_float = True  # a softcap or scale that changes between calls breaks it (torch 2.11)
    torch._dynamo.config.accumulated_recompile_limit = 100_000
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    torch._inductor.config.compile_threads = 1  # else each child of a session starts a pool of a process a core
    return torch.compile(flex_attention, fullgraph=True)


def _split(p: AnyProblem, how: str, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """The mask as block_mask and score_mod say it, bool as dense_mask; None: nothing. Together they say the mask.

    split  each pair that is masked is masked by one of the two, in turns
    """
    plain = p.mask == Full() and not p.ragged
    if how == "block_mask":
        return (None if plain else dense_mask(p, device)), None
    kept = dense_mask(p, device)
    if how == "score_mod":
        return None, kept
    if how == "both":
        return kept, kept
    q, k = torch.arange(p.len_q, device=device)[:, None], torch.arange(p.len_k, device=device)
    odd = ((q ^ k) & 1).bool()
    return kept | odd, kept | ~odd


def _block_mask(p: AnyProblem, kept: Tensor, options: dict[str, Any]) -> BlockMask:
    """Block mask of `kept`. A block past whose edge tokens end is partial, as create_block_mask has it.

    The documentation of from_kv_blocks calls BLOCK_SIZE "Size of KV_BLOCK_SIZE x Q_BLOCK_SIZE tiles"; its source reads
    (Q, KV), as create_block_mask does, and so does this.
    """

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return kept[b if kept.shape[0] > 1 else 0, h if kept.shape[1] > 1 else 0, q, k]

    size = (int(options["block"]), int(options["block_n"]))
    given: Any = 128 if size == (128, 128) else size[0] if size[0] == size[1] else size
    if options["made"] == "from_kv_blocks" and p.len_q and p.len_k:
        partial, whole = _lists(kept, size)
        return _FROM_BLOCKS.call(
            BlockMask.from_kv_blocks,
            *partial,
            *whole,
            BLOCK_SIZE=given,
            mask_mod=mask_mod,
            seq_lengths=(p.len_q, p.len_k),
        )
    batch = p.batch if kept.shape[0] > 1 else None
    heads = p.heads_q if kept.shape[1] > 1 else None
    more = {} if _PARTIAL not in _BLOCK_MASK.names else {_PARTIAL: options["made"] != "partial"}
    return _BLOCK_MASK.call(
        create_block_mask,
        mask_mod,
        batch,
        heads,
        p.len_q,
        p.len_k,
        device=kept.device,
        BLOCK_SIZE=given,
        **more,
    )


def _lists(kept: Tensor, size: tuple[int, int]) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Counts and ascending indices of the partial and of the full blocks of each row, int32."""
    m, n = size
    padded = F.pad(kept, (0, -kept.shape[3] % n, 0, -kept.shape[2] % m))
    tiled = padded.unflatten(3, (-1, n)).unflatten(2, (-1, m))  # batch, heads, m_block, m, n_block, n
    whole = tiled.all(5).all(3)
    return _listed(tiled.any(5).any(3) & ~whole), _listed(whole)


def _listed(flags: Tensor) -> tuple[Tensor, Tensor]:
    order = torch.sort(flags.to(torch.uint8), dim=-1, descending=True, stable=True).indices
    return flags.sum(-1).to(torch.int32), order.to(torch.int32)


def _score_mod(p: AnyProblem, bias: Tensor | None, kept: Tensor | None):
    cap = p.softcap
    if not cap and bias is None and kept is None:
        return None

    def score_mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        if cap:
            score = cap * torch.tanh(score / cap)
        if bias is not None:
            at = [i if size > 1 else 0 for i, size in zip((b, h, q, k), bias.shape, strict=True)]
            score = score + bias[at[0], at[1], at[2], at[3]]
        if kept is None:
            return score
        here = kept[b if kept.shape[0] > 1 else 0, h if kept.shape[1] > 1 else 0, q, k]
        return torch.where(here, score, float("-inf"))

    return score_mod


def _every_row_has_keys(p: AnyProblem) -> bool:
    return p.len_k > 0 and not p.ragged and bool(dense_mask(p).any(-1).all())


def _useful(p: AnyProblem, options: dict[str, Any]) -> bool:
    """True if the problem can be said so, and keeps what the options promise."""
    heads = {"auto": True, "always": p.group == 1, "expanded": p.group > 1}
    return heads[options["gqa"]] and (options["kernel"] != "safe" or _every_row_has_keys(p))
