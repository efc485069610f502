"""Calls of flash_attn.cute: from a Case to the arguments of its two functions; and the same call made dry, unlaunched.

A dry call runs FlashAttention-4's own host code on PyTorch's fake tensors, forward and backward, with the very strides
and alignments of the real ones: it compiles what the real call will launch, so that compiling never counts against a
run's deadline. Where the compiled kernels go is flash_attention_4_tables.py.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from fuzz.core.case import Case
from fuzz.core.target import Tensors
from fuzz.targets.flash_attention_4.arguments import (
    BlockTensors,
    block_tensors,
    keep_tensor,
    lengths_options,
    mask_options,
)
from fuzz.targets.flash_attention_4.extras import bounds_of, page_table, paged, sink
from fuzz.targets.flash_attention_4.surface import DENSE, VARLEN
from fuzz.targets.flash_attention_4.unsupported import options_of
from oracles.problem import AnyProblem


class Refused(ValueError):
    """FlashAttention-4 said no. It says so with `assert`, which elsewhere in this program is a fault of our own."""


@dataclass(frozen=True)
class Call:
    """One call: q, k, v (and do, where there is a backward pass) as flash_attn.cute takes them, (batch, length, heads,
    dim) or packed (total, heads, dim); `options` are its keyword arguments."""

    varlen: bool
    q: Tensor
    k: Tensor
    v: Tensor
    do: Tensor | None
    options: dict[str, Any]


def prepared(case: Case, options: dict[str, Any], device: torch.device | str) -> dict[str, Any]:
    """The keyword arguments of a case, its tensors made: mask, block lists, lengths.

    options  of the case's variant, complete (see flash_attention_4.OPTIONS)
    """
    p = case.problem
    found: dict[str, Any] = {
        "softmax_scale": p.scale,
        "softcap": p.softcap,
        "deterministic": bool(options["deterministic"]),
        "pack_gqa": None if options["pack_gqa"] == "auto" else options["pack_gqa"] == "on",
        "num_splits": int(options["splits"]),
        "return_lse": True,
        **lengths_options(p, device),
    }
    found = _with_extras(found, p, options, device)
    if options["mask"] == "options" or options["flags"]:
        said = mask_options(p)
        assert said is not None, "the rules let no other case through"
        found |= said
    if options["mask"] == "options":
        return found
    if options["mask"] == "scalars":
        from fuzz.targets.flash_attention_4.mask_mod import band_mod, scalars

        bounds = bounds_of(p)
        assert bounds is not None, "the rules let no other case through"
        return found | {"mask_mod": band_mod, "aux_scalars": scalars(bounds)}
    from fuzz.targets.flash_attention_4.mask_mod import keep_mod

    keep = keep_tensor(p, device)
    if options["edge"] and keep.device.type == "cuda":
        from fuzz.targets.flash_attention_4.guard_page import at_the_edge

        keep = at_the_edge(keep)
    found |= {"mask_mod": keep_mod, "aux_tensors": [keep]}
    if options["mask"] == "blocks":
        size = tuple(int(n) for n in str(options["block"]).split("x"))
        forward, backward = block_tensors(p, size, device)  # type: ignore[arg-type]
        if p.backward and options["deterministic"]:
            backward = _ordered(forward, backward, descending=options["order"] == "descending")
        found["block_sparse_tensors"] = _given(forward)
        if p.backward and options["function"] != "varlen":  # which has no parameter for it: its backward goes without
            found["block_sparse_tensors_bwd"] = _given(backward)
    return found


def _with_extras(
    found: dict[str, Any], p: AnyProblem, options: dict[str, Any], device: torch.device | str
) -> dict[str, Any]:
    """The keyword arguments with those of extras.py."""
    made = dict(found)
    if options["function"] == "varlen" or options["keys"] == "paged":
        used = {"q": p.lengths_q, "k": p.lengths_k}
        names = ("k",) if p.layout == "packed" else ("q", "k")
        made |= {f"seqused_{n}": torch.tensor(used[n], dtype=torch.int32, device=device) for n in names}
    if options["keys"] == "paged":
        made.pop("cu_seqlens_k", None)
        made["page_table"] = page_table(p, device)
    if options["hints"] == "none":
        made = {name: value for name, value in made.items() if name not in ("max_seqlen_q", "max_seqlen_k")}
    elif options["hints"] == "min":
        made["min_seqlen_k"] = min(p.lengths_k)
    if options["sink"]:
        made["learnable_sink"] = sink(p, device, options["sink"])
    if not options["metadata"]:
        made["disable_scheduler_metadata"] = True
    if options["scores"] == "score_mod":
        cap, capped = _capping(p.softcap)
        made |= {"softcap": 0.0, "score_mod": cap} | ({"score_mod_bwd": capped} if p.backward else {})
    return made


@lru_cache(maxsize=16)
def _capping(softcap: float) -> tuple[Any, Any]:
    """FlashAttention-4's own score_mod of a softcap, and its derivative: one pair for a softcap, as its users keep."""
    from flash_attn.cute import utils

    return utils.create_softcap_scoremod(softcap), utils.create_softcap_scoremod_bwd(softcap)


def call_of(case: Case, tensors: Tensors, options: dict[str, Any]) -> Call:
    """The call of a case whose keyword arguments are `options`."""
    p, own = case.problem, options_of(case)
    turned = (lambda x: x) if p.layout == "packed" else (lambda x: x.transpose(1, 2))
    do = None if tensors.do is None or not p.backward else turned(tensors.do)
    varlen = p.layout == "packed" or p.ragged or own["function"] == "varlen"
    k, v = turned(tensors.k), turned(tensors.v)
    if own["keys"] == "paged":
        k, v = (paged(x, p, options["page_table"]) for x in (k, v))
    return Call(varlen, turned(tensors.q), k, v, do, options)


def forward(call: Call) -> tuple[Tensor, Tensor]:
    """O and LSE, differentiable. Raises Refused where FlashAttention-4 refuses."""
    of = interface()
    function = of.flash_attn_varlen_func if call.varlen else of.flash_attn_func
    with refusing():
        return (VARLEN if call.varlen else DENSE).call(function, call.q, call.k, call.v, **call.options)


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Turns FlashAttention-4's assertions into Refused."""
    try:
        yield
    except AssertionError as error:
        raise Refused(str(error) or "assertion failed without a word") from error


def dry_run(call: Call) -> None:
    """The call without a launch: FlashAttention-4 compiles what it would have launched. Raises Refused, and whatever
    its compiler raises."""
    of = interface()
    function = of.FlashAttnVarlenFunc if call.varlen else of.FlashAttnFunc
    with warnings.catch_warnings(), _device_zero(), FakeTensorMode(), refusing():
        warnings.simplefilter("ignore")
        context = _Context()
        bound = inspect.signature(function.forward).bind(
            context, *_fake((call.q, call.k, call.v)), **_fake(call.options)
        )
        bound.apply_defaults()
        function.forward(*bound.args)
        if call.do is not None:
            function.backward(context, _fake(call.do), None)


class _Context:
    """What autograd hands to a Function, for a call outside of it."""

    saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Nothing: gradients are given as they are."""


def interface() -> Any:
    """flash_attn.cute.interface; importing it takes seconds."""
    from flash_attn.cute import interface as found

    return found


@contextlib.contextmanager
def replaced(owner: Any, **others: Any) -> Iterator[None]:
    """Other attributes of `owner` for a while."""
    before = {name: getattr(owner, name) for name in others}
    for name, value in others.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


@contextlib.contextmanager
def _device_zero() -> Iterator[None]:
    """What PyTorch cannot do without a GPU with fake tensors that are on one: say which device is the current one, and
    make them contiguous (a clone it can)."""
    if torch.cuda.is_initialized():
        yield
        return

    def contiguous(self: Tensor) -> Tensor:
        return self if self.is_contiguous() else self.clone(memory_format=torch.contiguous_format)

    with replaced(torch.cuda, current_device=lambda: 0), replaced(Tensor, contiguous=contiguous):
        yield


def _fake(value: Any) -> Any:
    """The arguments with every tensor replaced by a fake one on cuda:0 with its strides and its alignment to 16
    bytes."""
    if isinstance(value, Tensor):
        offset = value.data_ptr() % 16 // value.element_size() if value.numel() else 0
        span = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True)) if value.numel() else 0
        whole = torch.empty(offset + span, dtype=value.dtype, device="cuda:0")
        return whole.as_strided(value.shape, value.stride(), offset)
    if isinstance(value, dict):
        return {name: _fake(inner) for name, inner in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_fake, value))
    if isinstance(value, list | tuple):
        return type(value)(map(_fake, value))
    return value


def _ordered(by_query: BlockTensors, by_key: BlockTensors, *, descending: bool) -> BlockTensors:
    """The lists of a deterministic backward pass: with FlashAttention-4's own ranks, as its users compute them."""
    from flash_attn.cute.block_sparsity import compute_dq_write_order

    lists = ("mask_block_cnt", "mask_block_idx", "full_block_cnt", "full_block_idx")
    given = [getattr(of, name) for of in (by_query, by_key) for name in lists]
    order, order_full = compute_dq_write_order(*given, spt=descending)
    return replace(by_key, dq_write_order=order, dq_write_order_full=order_full, spt=descending)


def _given(lists: BlockTensors) -> Any:
    from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch

    return BlockSparseTensorsTorch(**{field.name: getattr(lists, field.name) for field in fields(lists)})
