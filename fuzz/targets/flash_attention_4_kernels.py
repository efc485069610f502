"""Calls of flash_attn.cute: from a Case to the arguments of its two functions; and the same call made dry, unlaunched.

A dry call runs FlashAttention-4's own host code on PyTorch's fake tensors, forward and backward, with the very strides
and alignments of the real ones. It compiles what the real call will launch (so that compiling never counts against a
run's deadline), or, with `planned`, only names it: FlashAttention-4 keeps one table of compiled kernels per kind, and
asks it for a key; whoever stands in for the tables sees the keys. That reads names of its internals (INTERNALS), which
`unusable` checks.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
import pickle
import platform
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from fuzz.case import Case
from fuzz.compiling.build import digest, toolchain
from fuzz.compiling.cache import default_folder
from fuzz.targets.flash_attention_4_blocks import (
    BlockTensors,
    block_tensors,
    keep_tensor,
    lengths_options,
    mask_options,
)
from fuzz.targets.target import Tensors

# The functions that own a table of compiled kernels, by the name that the table has on disk.
INTERNALS = {
    "fwd": "_flash_attn_fwd",
    "bwd_pre": "_bwd_preprocess",
    "bwd": "_flash_attn_bwd",
    "bwd_post": "_bwd_postprocess_convert",
    "fwd_combine": "_flash_attn_fwd_combine",
}
SOURCES = ("flash_attn.cute", "quack")
PROCESSORS = {90: 132, 100: 148}  # streaming multiprocessors of the GPU that is compiled for: H100, B200


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


def number_of(arch: str) -> int:
    """90 of 'sm_90a'."""
    return int(arch.removeprefix("sm_").rstrip("af"))


def unusable() -> str | None:
    """Why flash_attn.cute cannot be used here, or None. Imports it."""
    try:
        interface = _interface()
    except Exception as error:  # whatever an import of a foreign package raises
        return f"flash_attn.cute cannot be imported: {type(error).__name__}: {error}"
    lacking = [name for name in INTERNALS.values() if not hasattr(getattr(interface, name, None), "compile_cache")]
    return f"this version of flash_attn.cute has no {', '.join(lacking)}" if lacking else None


def prepared(case: Case, options: dict[str, Any], device: torch.device | str, arch: str) -> dict[str, Any]:
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
    if options["mask"] == "options":
        said = mask_options(p)
        assert said is not None, "the rules let no other case through"
        return found | said
    from fuzz.targets.flash_attention_4_mask import keep_mod

    found |= {"mask_mod": keep_mod, "aux_tensors": [keep_tensor(p, device)]}
    if options["mask"] == "blocks":
        size = tuple(int(n) for n in str(options["block"]).split("x"))
        forward, backward = block_tensors(p, size, device)  # type: ignore[arg-type]
        if p.backward and options["deterministic"]:
            backward = _ordered(forward, backward, descending=options["order"] == "descending")
        found["block_sparse_tensors"] = _given(forward)
        if p.backward:
            found["block_sparse_tensors_bwd"] = _given(backward)
    return found


def call_of(case: Case, tensors: Tensors, options: dict[str, Any]) -> Call:
    """The call of a case whose keyword arguments are `options`."""
    p = case.problem
    turned = (lambda x: x) if p.layout == "packed" else (lambda x: x.transpose(1, 2))
    do = None if tensors.do is None or not p.backward else turned(tensors.do)
    varlen = p.layout == "packed" or p.ragged
    return Call(varlen, turned(tensors.q), turned(tensors.k), turned(tensors.v), do, options)


def forward(call: Call) -> tuple[Tensor, Tensor]:
    """O and LSE, differentiable. Raises Refused where FlashAttention-4 refuses."""
    interface = _interface()
    function = interface.flash_attn_varlen_func if call.varlen else interface.flash_attn_func
    with refusing():
        return function(call.q, call.k, call.v, **call.options)


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
    interface = _interface()
    function = interface.FlashAttnVarlenFunc if call.varlen else interface.FlashAttnFunc
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


def planned(call: Call, arch: str) -> list[tuple[str, str]]:
    """What a call would compile for `arch`: (table, hash of its key), each once, in the order of the launches."""
    seen: dict[tuple[str, str], None] = {}

    class Table:
        def __init__(self, name: str) -> None:
            self.name = name

        def __contains__(self, key: Any) -> bool:
            seen[self.name, hash_of(key)] = None
            return True

    with _tables(Table), _compiling_for(arch):
        dry_run(call)
    return list(seen)


def compiled(call: Call, arch: str, wanted: tuple[str, str]) -> Any:
    """The one kernel of a call that `wanted` names (see `planned`), compiled for `arch` in this process, which has no
    GPU, and written to FlashAttention-4's own cache on disk too. Raises KeyError where the call has no such kernel."""
    made: list[Any] = []

    class Table:
        def __init__(self, name: str) -> None:
            self.name = name

        def __contains__(self, key: Any) -> bool:
            return (self.name, hash_of(key)) != wanted or bool(made)

        def __setitem__(self, key: Any, function: Any) -> None:
            made.append(function)
            _stored(arch, self.name)[key] = function

    with _tables(Table), _compiling_for(arch):
        dry_run(call)
    if not made:
        raise KeyError(f"the call compiles no {wanted[0]} with the key {wanted[1]}")
    return made[0]


def hash_of(key: Any) -> str:
    """A short hash of a compile key, of the same bytes that FlashAttention-4 names its files by."""
    return hashlib.sha256(pickle.dumps(key)).hexdigest()[:16]


def folder(arch: str) -> Path:
    """Where FlashAttention-4's compiled kernels lie for an arch, in this program's own cache folder: its sources, its
    compiler and Python's version decide its name, since FlashAttention-4's keys hold neither these nor the arch."""
    parts = (digest(SOURCES), *toolchain(), platform.python_version(), _tvm_ffi())
    return default_folder() / "flash_attn.cute" / arch / hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel, and an event behind it on its stream."""

    name: str
    done: torch.cuda.Event


class Launches:
    """The launches of this process since the last `clear`."""

    def __init__(self) -> None:
        self.kept: list[Launch] = []

    def clear(self) -> None:
        """Forgets all."""
        self.kept = []

    def hanging(self) -> str | None:
        """The first one that has not ended."""
        return next((one.name for one in list(self.kept) if not one.done.query()), None)


LAUNCHES = Launches()


@cache
def connect(arch: str) -> None:
    """Makes FlashAttention-4 in this process, which owns a GPU, load what was compiled ahead, and its launches be known
    in LAUNCHES. Once; for the rest of the process."""
    for name in INTERNALS:
        _owner(name).compile_cache = _Live(name, arch)


class _Live:
    """A table of compiled kernels, backed by the one on disk, whose kernels note that they were launched."""

    def __init__(self, name: str, arch: str) -> None:
        self._name, self._arch = name, arch
        self._table = _stored(arch, name)

    def __contains__(self, key: Any) -> bool:
        return key in self._table

    def __setitem__(self, key: Any, function: Any) -> None:
        self._table[key] = function

    def __getitem__(self, key: Any) -> Callable[..., None]:
        return partial(_launch, f"{self._name} {self._arch} {hash_of(key)[:8]}", self._table[key])


def _launch(name: str, function: Callable[..., None], *arguments: Any) -> None:
    function(*arguments)
    done = torch.cuda.Event()
    done.record()
    LAUNCHES.kept.append(Launch(name, done))


@cache
def _stored(arch: str, name: str) -> Any:
    from flash_attn.cute.cache_utils import JITPersistentCache

    return JITPersistentCache(folder(arch) / name)


@contextlib.contextmanager
def _tables(made: Callable[[str], Any]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name in INTERNALS:
            stack.enter_context(_replaced(_owner(name), compile_cache=made(name)))
        yield


def _owner(name: str) -> Any:
    return getattr(_interface(), INTERNALS[name])


def _interface() -> Any:
    from flash_attn.cute import interface

    return interface


@contextlib.contextmanager
def _compiling_for(arch: str) -> Iterator[None]:
    """What FLASH_ATTENTION_ARCH and CUTE_DSL_ARCH do, for one call, in a process without a GPU."""
    from cutlass.cutlass_dsl import CuTeDSL

    interface, compiler = _interface(), CuTeDSL._get_dsl().envar
    wanted = {
        "FLASH_ATTENTION_ARCH": f"sm_{number_of(arch)}",
        "FLASH_ATTENTION_NUM_SMS": str(PROCESSORS[number_of(arch)]),
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    compiler.arch = arch
    interface._get_device_arch.cache_clear()
    try:
        with _processors(PROCESSORS[number_of(arch)]):
            yield
    finally:
        del compiler.arch
        interface._get_device_arch.cache_clear()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextlib.contextmanager
def _processors(count: int) -> Iterator[None]:
    """Persistent kernels hold the number of processors; the compiler asks a GPU for it."""
    from cutlass.utils import HardwareInfo

    def start(self: Any, device_id: int = 0) -> None: ...

    with _replaced(HardwareInfo, __init__=start, get_device_multiprocessor_count=lambda self: count):
        yield


@contextlib.contextmanager
def _replaced(owner: Any, **others: Any) -> Iterator[None]:
    """Other attributes for a while."""
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

    with _replaced(torch.cuda, current_device=lambda: 0), _replaced(Tensor, contiguous=contiguous):
        yield


def _fake(value: Any) -> Any:
    """The same with every tensor replaced by a fake one on cuda:0 with its strides and its alignment to 16 bytes."""
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


def _tvm_ffi() -> str:
    import tvm_ffi

    return f"tvm_ffi {tvm_ffi.__version__}"
