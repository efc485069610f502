"""cudnn.NSA's selection attention (PyPI nvidia-cudnn-frontend) from the outside: its functions, its compiler, and the
GPU that its host code sees.

The package compiles one kernel for a call's shapes, strides and dtypes (`cute.compile` in its api.py). A stand-in for
`cute` sees the arguments of that; so a plan is a dry call that notes them. Names of the package's internals that all
this reads are checked by `unusable`.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fuzz.core.surface import NotRun
from fuzz.targets.cudnn_cute.host import FakeGpu, aligned, hash_of, nothing, refusing
from fuzz.targets.cudnn_nsa.arguments import Call
from fuzz.targets.cudnn_nsa.surface import CLASS, EXECUTE, WRAPPER
from fuzz.targets.flash_attention_4.calls import replaced

ROOT = "cudnn.native_sparse_attention.selection"
CACHE = "_cache_of_SelectionAttentionObjects"
INTERNALS = ("SelectionAttention", "selection_attention_wrapper", "cute", CACHE)
# Of the kernel's object: what it is compiled for beside the tensors.
CONFIGURATION = ("qk_dim", "value_dim", "GQA_group_size", "block_size", "dtype", "causal_within_selected_blocks")
NUMBERS = ("max_length", "softmax_scale", "stream", "options")  # arguments of cute.compile that are no tensors
Compile = Callable[[str, Callable[[], Any]], Callable[..., None]]  # key of a kernel, function that compiles it


def unusable() -> str | None:
    """Reason why the package cannot be used here, or None. Imports it."""
    try:
        lacking = [name for name in INTERNALS if not hasattr(_api(), name)]
    except Exception as error:  # whatever an import of a foreign package raises
        return f"{ROOT} cannot be imported: {type(error).__name__}: {error}"
    return f"this version of nvidia-cudnn-frontend has no {', '.join(lacking)}" if lacking else None


def _api() -> Any:
    return importlib.import_module(f"{ROOT}.api")


def selection(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """O (total, heads_q, dim_v), the sums and the maxima of the rows (total, heads_q). Raises Refused where the package
    refuses."""
    with refusing():
        found = _wrapped(call) if call.options["api"] == "wrapper" else _by_class(call)
    o, sums, maxima = found
    return o, sums.reshape(o.shape[:2]), maxima.reshape(o.shape[:2])


def _settings(call: Call) -> dict[str, Any]:
    """Keyword arguments of the wrapper and of the class that have the same names."""
    given: dict[str, Any] = {}
    if call.options["block"] != 64:
        given["block_size"] = call.options["block"]
    if call.options["causal"]:
        given["is_causal"] = True
    if call.scale is not None:
        given["scale_softmax"] = call.scale
    return given


def _wrapped(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    given = _settings(call)
    if call.options["keys"] == "given":
        given["cum_seqlen_k_tensor"] = call.offsets
    if call.longest is not None:
        given |= {"max_s_q": call.longest, "max_s_k": call.longest}
    found = WRAPPER.call(
        _api().selection_attention_wrapper,
        call.q,
        call.k,
        call.v,
        call.index,
        call.counts,
        cum_seqlen_q_tensor=call.offsets,
        **given,
    )
    return found["o_tensor"], found["l_tensor"], found["m_tensor"]


def _by_class(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """With api=reused the object is made for another scale, and the call's is given at its execution."""
    reused = call.options["api"] == "reused"
    total, heads_q, _ = call.q.shape
    device = call.q.device
    o = torch.empty((total, heads_q, call.v.shape[-1]), dtype=call.q.dtype, device=device)
    shape = (total, heads_q, 1) if call.options["sums"] == "3d" else (total, heads_q)
    sums, maxima = (torch.empty(shape, dtype=torch.float32, device=device) for _ in range(2))
    given = _settings(call)
    scale = given.pop("scale_softmax", None) if reused else None
    keys = {"cum_seqlen_k": call.offsets} if call.options["keys"] == "given" else {}
    assert call.longest is not None, "the rules let no other case through"
    tensors = (call.q, call.k, call.v, o, sums, maxima, call.index, call.counts)
    more = {} if scale is None else {"scale_softmax": scale}
    executed = {"cum_seqlen_q_tensor": call.offsets} | {f"{name}_tensor": x for name, x in keys.items()} | more
    try:
        made = CLASS.call(
            _api().SelectionAttention,
            *tensors,
            sample_cum_seqlen_q=call.offsets,
            **{f"sample_{name}": x for name, x in keys.items()},
            max_s_q=call.longest,
            max_s_k=call.longest if keys else None,
            **given,
        )
    except NotRun:  # of a dry run, which notes the execution too
        EXECUTE.call(nothing, *tensors, **executed)
        raise
    assert made.check_support()
    made.compile()
    EXECUTE.call(made.execute, *tensors, **executed)
    return o, sums, maxima


class _Cute:
    """cutlass.cute, whose `compile` asks `made` for the kernel."""

    def __init__(self, cute: Any, made: Compile) -> None:
        self._cute, self._made = cute, made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cute, name)

    def compile(self, kernel: Any, **arguments: Any) -> Callable[..., None]:
        """See cutlass.cute.compile. The key leaves out the numbers that a compiled kernel is given."""
        tensors = {name: x.__cache_key__ for name, x in arguments.items() if name not in NUMBERS}
        key = hash_of((sorted(tensors.items()), [getattr(kernel, name) for name in CONFIGURATION]))
        return self._made(key, lambda: self._cute.compile(kernel, **arguments))


@contextlib.contextmanager
def seeing_a_gpu(arch: str, made: Compile, kept: dict[Any, Any]) -> Iterator[None]:
    """In it the package's host code takes CPU tensors for those of a GPU of `arch`, and gets its kernels from `made`.
    kept: the objects that its wrapper keeps from call to call."""
    base = importlib.import_module("cudnn.api_base")
    room, api = torch.empty, _api()
    with (
        replaced(torch.cuda, **FakeGpu(arch).functions(), is_available=lambda: True),
        replaced(base, _RAW_STREAM=lambda device: 0),
        replaced(api, cute=_Cute(api.cute, made), **{CACHE: kept}),
        replaced(torch, empty=aligned(torch.empty, room)),
    ):
        yield


def planned(call: Call, arch: str) -> list[str]:
    """Keys of the kernels that a call on CPU tensors would compile for `arch`."""
    seen: dict[str, None] = {}

    def noted(key: str, compile_it: Callable[[], Any]) -> Callable[..., None]:
        seen[key] = None
        return nothing

    with seeing_a_gpu(arch, noted, {}):
        selection(call)
    return list(seen)


def compiled(call: Call, arch: str, wanted: str) -> Any:
    """The kernel of a call that has the key `wanted`, compiled for `arch` in this process, which has no GPU. Raises
    KeyError where the call has no such kernel."""
    from cutlass.cutlass_dsl import CuTeDSL

    made: dict[str, Any] = {}

    def compiling(key: str, compile_it: Callable[[], Any]) -> Callable[..., None]:
        if key == wanted:
            made[key] = compile_it()
        return nothing

    settings = CuTeDSL._get_dsl().envar
    settings.arch = arch
    try:
        with seeing_a_gpu(arch, compiling, {}):
            selection(call)
    finally:
        del settings.arch
    return made[wanted]


@contextlib.contextmanager
def taking_cpu_tensors(arch: str, gpu: Any, made: Compile, kept: dict[Any, Any]) -> Iterator[None]:
    """As `seeing_a_gpu`; launches run on `gpu`, a cute_functions.Device. Raises EmulationError for what the emulated
    GPU finds."""
    from fuzz.devices.emulator.frontends.cute_functions import on_emulated_gpu

    with on_emulated_gpu(arch, gpu), seeing_a_gpu(arch, made, kept):
        yield
