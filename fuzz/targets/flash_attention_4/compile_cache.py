"""FlashAttention-4's tables of compiled kernels: what a call needs of them, one kernel compiled ahead, and all of them
on disk.

FlashAttention-4 keeps one table per kind of kernel (INTERNALS) and asks it for a key before it compiles; whoever stands
in for the tables sees the keys. So a plan is a dry call whose tables say that they have everything, and one kernel is
compiled by tables that lack that one. In the process that owns a GPU they note what is launched. All this reads
names of FlashAttention-4's internals, which `unusable` checks.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from fuzz.compiling.build_key import digest, toolchain
from fuzz.compiling.cache import default_folder
from fuzz.targets.flash_attention_4 import calls as kernels
from fuzz.targets.flash_attention_4.calls import Call, dry_run, forward, replaced

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


def number_of(arch: str) -> int:
    """90 of 'sm_90a'."""
    return int(arch.removeprefix("sm_").rstrip("af"))


def unusable() -> str | None:
    """Reason why flash_attn.cute cannot be used here, or None. Imports it."""
    try:
        interface = kernels.interface()
    except Exception as error:  # whatever an import of a foreign package raises
        return f"flash_attn.cute cannot be imported: {type(error).__name__}: {error}"
    lacking = [name for name in INTERNALS.values() if not hasattr(getattr(interface, name, None), "compile_cache")]
    return f"this version of flash_attn.cute has no {', '.join(lacking)}" if lacking else None


def planned(call: Call, arch: str) -> list[tuple[str, str]]:
    """What a call would compile for `arch`: (table, hash of its key), each once, in the order of the launches."""
    seen: dict[tuple[str, str], None] = {}

    class Table:
        def __init__(self, name: str) -> None:
            self.name = name

        def __contains__(self, key: Any) -> bool:
            seen[self.name, hash_of(key)] = None
            return True

    with _tables(Table), compiling_for(arch):
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

    with _tables(Table), compiling_for(arch):
        dry_run(call)
    if not made:
        raise KeyError(f"the call compiles no {wanted[0]} with the key {wanted[1]}")
    return made[0]


def hash_of(key: Any) -> str:
    """A short hash of a compile key, of the same bytes that FlashAttention-4 names its files by."""
    return hashlib.sha256(pickle.dumps(key)).hexdigest()[:16]


def folder(arch: str) -> Path:
    """Folder of FlashAttention-4's compiled kernels for an arch, in this program's own cache folder: its sources, its
    compiler and Python's version decide its name, since FlashAttention-4's keys hold neither these nor the arch."""
    parts = (digest(SOURCES), *toolchain(), platform.python_version(), _tvm_ffi())
    return default_folder() / "flash_attn.cute" / arch / hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel, and an event behind it on its stream; None: it has ended."""

    name: str
    done: torch.cuda.Event | None


class Launches:
    """The launches of this process since the last `clear`."""

    def __init__(self) -> None:
        self.kept: list[Launch] = []

    def clear(self) -> None:
        """Forgets all."""
        self.kept = []

    def hanging(self) -> str | None:
        """The first one that has not ended."""
        return next((one.name for one in list(self.kept) if one.done is not None and not one.done.query()), None)


LAUNCHES = Launches()


@cache
def connect(arch: str) -> None:
    """Makes FlashAttention-4 in this process, which owns a GPU, load what was compiled ahead, and its launches be known
    in LAUNCHES. Once; for the rest of the process."""
    for name in INTERNALS:
        owner(name).compile_cache = _Live(name, arch)


@cache
def warm(arch: str) -> None:
    """The first launch of this process, forward and backward on one small tile: what is loaded then takes seconds that
    are no kernel's."""
    tensors = [torch.zeros((1, 64, 1, 64), dtype=torch.bfloat16, device="cuda", requires_grad=True) for _ in range(3)]
    q, k, v = tensors
    call = Call(False, q, k, v, q.detach(), {"return_lse": True})
    dry_run(call)
    o, _ = forward(call)
    torch.autograd.grad(o, tensors, torch.zeros_like(o))
    torch.cuda.synchronize()


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
            stack.enter_context(replaced(owner(name), compile_cache=made(name)))
        yield


def owner(name: str) -> Any:
    """The function of FlashAttention-4 that owns a table, by the table's name."""
    return getattr(kernels.interface(), INTERNALS[name])


@contextlib.contextmanager
def compiling_for(arch: str) -> Iterator[None]:
    """What FLASH_ATTENTION_ARCH and CUTE_DSL_ARCH do, for one call, in a process without a GPU."""
    from cutlass.cutlass_dsl import CuTeDSL

    interface, compiler = kernels.interface(), CuTeDSL._get_dsl().envar
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

    with replaced(HardwareInfo, __init__=start, get_device_multiprocessor_count=lambda self: count):
        yield


def _tvm_ffi() -> str:
    import tvm_ffi

    return f"tvm_ffi {tvm_ffi.__version__}"
