"""PyTorch's global settings: read, compared, and put back after a call that changed them.

One row of a table for each setting. All rows are read in about 4 µs, so every call of a target is surrounded by two
reads (fuzz/judging/execution.py). A row without `write` cannot be put back from outside: its process is not to judge
another case. What PyTorch itself changes as it goes is no row: the order of SDPA's backends, and the recursion limit,
which torch.compile raises. Settings of the process that are not PyTorch's are in process_state.py.
"""

from __future__ import annotations

import ctypes
import functools
import gc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.overrides
import torch.utils._python_dispatch as dispatch

_C: Any = torch._C
_UNREADABLE = "unreadable"  # some getters raise while precisions are set through PyTorch's old and new interface
_MOST_POPS = 10_000
_PASSES = 2  # over the table: to set one precision may change another
_TINY, _ONE, _HALF_ULP = 5e-324, 1.0, 2.0**-53


@dataclass(frozen=True)
class Setting:
    """One setting: its name in messages, its value now, and a function that sets it to a value read before."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object] | None = None


@dataclass(frozen=True)
class Change:
    """A setting that a call left changed. `lost`: it could not be put back."""

    name: str
    text: str
    lost: bool = False


def read() -> tuple[Any, ...]:
    """The values of all settings, in the table's order."""
    try:
        return tuple([reader() for reader in _READERS])
    except RuntimeError:
        return tuple([_value(setting) for setting in SETTINGS])


def put_back(before: tuple[Any, ...]) -> list[Change]:
    """Sets what differs from `before`, a result of `read`, and returns the changes that there were."""
    now = read()
    if now == before:
        return []
    for _ in range(_PASSES):
        for setting, value in zip(SETTINGS, before, strict=True):
            if setting.write is not None and _value(setting) != value:
                with suppress(Exception):
                    setting.write(value)
    rows = zip(SETTINGS, before, now, read(), strict=True)
    return [
        Change(setting.name, f"{setting.name} was {_shown(was)} and is {_shown(found)}", lost=after != was)
        for setting, was, found, after in rows
        if found != was and found != _UNREADABLE
    ]


def _value(setting: Setting) -> Any:
    try:
        return setting.read()
    except RuntimeError:
        return _UNREADABLE


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))})"
    return getattr(value, "__qualname__", None) or str(getattr(value, "device", value))


def _default_device() -> Any:
    return torch._GLOBAL_DEVICE_CONTEXT.__dict__.get("device_context")


def _set_default_device(context: Any) -> None:
    torch.set_default_device(None if context is None else context.device)


def _pop_to(count: Callable[[], int], pop: Callable[[], object]) -> Callable[[int], None]:
    """Setter of the height of a stack: what was pushed onto it is popped."""

    def write(height: int) -> None:
        for _ in range(min(count() - height, _MOST_POPS)):
            pop()

    return write


def _saved_tensor_hooks() -> Any:
    return _C._autograd._top_saved_tensors_default_hooks(False)


def _set_saved_tensor_hooks(hooks: Any) -> None:
    for _ in range(_MOST_POPS):
        if _saved_tensor_hooks() == hooks:
            return
        _C._autograd._pop_saved_tensors_default_hooks()


def _set_autocast(device: str) -> Callable[[bool], None]:
    def write(on: bool) -> None:
        torch.set_autocast_enabled(device, on)
        torch.clear_autocast_cache()

    return write


def _rounding() -> tuple[bool, bool, bool]:
    """(True, True, True) where doubles are rounded to nearest."""
    up, down, half = _ONE + _HALF_ULP, -_ONE - _HALF_ULP, _ONE + 1.5 * _HALF_ULP
    return up == 1, down == -1, half > 1


def _set_rounding(value: Any) -> None:
    ctypes.CDLL("libm.so.6").fesetround(0)


def _cuda_stream() -> Any:
    """Current device and stream, once CUDA has started."""
    if not torch.cuda.is_initialized():
        return None
    device = _C._cuda_getDevice()
    return device, _C._cuda_getCurrentRawStream(device)


def _set_cuda_stream(value: Any) -> None:
    if value is not None:
        torch.cuda.set_device(value[0])
        torch.cuda.set_stream(torch.cuda.ExternalStream(value[1]) if value[1] else torch.cuda.default_stream())


def _precision(backend: str, op: str) -> Setting:
    return Setting(
        f"torch.backends' fp32_precision of {backend} {op}",
        functools.partial(_C._get_fp32_precision_getter, backend, op),
        functools.partial(_C._set_fp32_precision_setter, backend, op),
    )


def _of_c(name: str, getter: str, setter: str) -> tuple[Setting, ...]:
    """A setting with a getter and a setter in torch._C; none where this version of PyTorch has no such."""
    if not (hasattr(_C, getter) and hasattr(_C, setter)):
        return ()
    return (Setting(name, getattr(_C, getter), getattr(_C, setter)),)


def _pair(name: str, getter: str, setter: str) -> tuple[Setting, ...]:
    """As _of_c, of a setting that is two values, or one in an older version."""

    def write(value: Any) -> None:
        getattr(_C, setter)(*value) if isinstance(value, tuple) else getattr(_C, setter)(value)

    return tuple(Setting(one.name, one.read, write) for one in _of_c(name, getter, setter))


def _set_deterministic(on: bool) -> None:
    _C._set_deterministic_algorithms(on, warn_only=torch.is_deterministic_algorithms_warn_only_enabled())


def _set_warn_only(on: bool) -> None:
    _C._set_deterministic_algorithms(torch.are_deterministic_algorithms_enabled(), warn_only=on)


def _table() -> tuple[Setting, ...]:
    rows = [
        Setting("grad mode", torch.is_grad_enabled, torch._C._set_grad_enabled),
        Setting("inference mode", torch.is_inference_mode_enabled),
        Setting("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
        Setting("the default device", _default_device, _set_default_device),
        Setting(
            "the number of torch function modes",
            _C._len_torch_function_stack,
            _pop_to(_C._len_torch_function_stack, torch.overrides._pop_mode),
        ),
        Setting(
            "the number of torch dispatch modes",
            _C._len_torch_dispatch_stack,
            _pop_to(_C._len_torch_dispatch_stack, dispatch._pop_mode),
        ),
        Setting("the hook of saved tensors", _saved_tensor_hooks, _set_saved_tensor_hooks),
        Setting("functorch's transform", _C._functorch.peek_interpreter_stack),
        Setting("anomaly detection", torch.is_anomaly_enabled, torch.set_anomaly_enabled),
        Setting("deterministic algorithms", torch.are_deterministic_algorithms_enabled, _set_deterministic),
        Setting("warnings only", torch.is_deterministic_algorithms_warn_only_enabled, _set_warn_only),
        *(
            setting
            for device in ("cpu", "cuda")
            for setting in (
                Setting(
                    f"autocast on {device}",
                    functools.partial(torch.is_autocast_enabled, device),
                    _set_autocast(device),
                ),
                Setting(
                    f"autocast's dtype on {device}",
                    functools.partial(torch.get_autocast_dtype, device),
                    functools.partial(torch.set_autocast_dtype, device),
                ),
            )
        ),
        Setting("autocast's cache", torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
        Setting("the number of PyTorch's threads", torch.get_num_threads, torch.set_num_threads),
        Setting("NumPy's errors", np.geterr, lambda value: np.seterr(**value)),
        Setting("denormal numbers", lambda: _TINY * _ONE != 0, lambda on: torch.set_flush_denormal(not on)),
        Setting("rounding to nearest", _rounding, _set_rounding),
        Setting("the garbage collector", gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
        Setting("the current CUDA stream", _cuda_stream, _set_cuda_stream),
    ]
    if hasattr(_C, "_get_fp32_precision_getter"):
        kinds = [("generic", "all"), ("cuda", "all"), ("cuda", "matmul"), ("mkldnn", "all"), ("mkldnn", "matmul")]
        rows += [_precision(*kind) for kind in kinds]
    rows += _of_c("float32 matmul precision", "_get_float32_matmul_precision", "_set_float32_matmul_precision")
    rows += _of_c("TF32 in cuBLAS", "_get_cublas_allow_tf32", "_set_cublas_allow_tf32")
    for kind in ("fp16", "bf16"):
        name = f"_cublas_allow_{kind}_reduced_precision_reduction"
        rows += _pair(f"reduced precision reductions of {kind} in cuBLAS", f"_get{name}", f"_set{name}")
    for name in (
        "backcompat_broadcast_warn",
        "cpu_allow_fp16_reduced_precision_reduction",
        "cublas_allow_fp16_accumulation",
        "cudnn_allow_tf32",
        "cudnn_benchmark",
        "cudnn_deterministic",
        "cudnn_enabled",
        "deterministic_fill_uninitialized_memory",
        "math_sdp_allow_fp16_bf16_reduction",
        "mkldnn_deterministic",
        "mkldnn_enabled",
        "multithreading_enabled",
        "warnAlways",
    ):
        rows += _of_c(name.replace("_", " "), f"_get_{name}", f"_set_{name}")
    for name in ("cudnn", "fa3", "flash", "math", "mem_efficient", "overrideable"):
        rows += _of_c(f"the {name} backend of SDPA", f"_get_{name}_sdp_enabled", f"_set_sdp_use_{name}")
    return tuple(rows)


SETTINGS = _table()
_READERS = tuple(setting.read for setting in SETTINGS)
