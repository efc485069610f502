"""cudnn.block_sparse_attention (PyPI nvidia-cudnn-frontend) from the outside: its functions, its tables of compiled
kernels, and the GPU that its host code sees.

`import cudnn` needs neither libcudnn nor a GPU. The package keeps one table per function that compiles kernels (TABLES)
and asks it for a key before it compiles; a stand-in for the tables sees the keys. So a plan is a dry call whose
tables say that they have everything, and one kernel is compiled by tables that lack that one. All this reads names of
the package's internals, which `unusable` checks.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fuzz.targets.cudnn_block_sparse.arguments import Call
from fuzz.targets.cudnn_block_sparse.surface import BACKWARD, FORWARD
from fuzz.targets.cudnn_cute.host import SHARED_MEMORY, FakeGpu, aligned, hash_of, nothing, refusing
from fuzz.targets.flash_attention_4.calls import replaced

ROOT = "cudnn.block_sparse_attention"
# Functions that own a table of compiled kernels, by the table's name, with their module.
TABLES = {
    "fwd": ("_interface", "bsa_attn_fwd"),
    "fwd_sm90_128": ("_interface", "_bsa_attn_fwd_sm90_blk128"),
    "fwd_combine": ("_interface", "_combine_blk64_kv_bucketed_partials"),
    "fwd_sm100_64": ("_interface", "bsa_attn_fwd_blk64_cutedsl"),
    "bwd_64": ("_interface", "_bsa_attn_bwd_bucketed_k2q_csr"),
    "bwd_sm90_128": ("_interface", "_bsa_attn_bwd_sm90_blk128"),
    "bwd_sm100_128": ("csrc.bwd.sm100_blk128.bsa_bwd_sm100", "bsa_sm100_blk128_bwd_bucketed_k2q_csr"),
    "bwd_lists": ("csrc.bwd.bucketed_k2q_csr", "build_bucketed_k2q_csr_cutedsl"),
    "bwd_pre": ("csrc.bwd.bsa_bwd_prepost", "_bwd_preprocess"),
    "bwd_post": ("csrc.bwd.bsa_bwd_prepost", "_bwd_postprocess_convert"),
}


def unusable() -> str | None:
    """Reason why the package cannot be used here, or None. Imports it."""
    try:
        lacking = [
            name for name, (at, of) in TABLES.items() if not hasattr(getattr(_module(at), of, None), "compile_cache")
        ]
    except Exception as error:  # whatever an import of a foreign package raises
        return f"{ROOT} cannot be imported: {type(error).__name__}: {error}"
    return f"this version of nvidia-cudnn-frontend has no tables {', '.join(lacking)}" if lacking else None


def _module(name: str) -> Any:
    return importlib.import_module(f"{ROOT}.{name}")


def owner(name: str) -> Any:
    """The function that owns a table, by the table's name."""
    module, function = TABLES[name]
    return getattr(_module(module), function)


def forward(call: Call) -> tuple[Tensor, Tensor]:
    """O in the call's layout, and LSE (batch, heads_q, len_q). Raises Refused where the package refuses."""
    with refusing():
        found = FORWARD.call(_module("api").block_sparse_attention_forward, call.q, call.k, call.v, **call.forward)
    return found["o_tensor"], found["lse_tensor"]


def backward(call: Call, o: Tensor, lse: Tensor, given: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """dQ, dK and dV in the call's layout. given: tensors for them, or none. Raises Refused where it refuses."""
    function = _module("api").block_sparse_attention_backward
    with refusing():
        found = BACKWARD.call(function, call.do, call.q, call.k, call.v, o, lse, **call.backward, **given)
    return found["dq_tensor"], found["dk_tensor"], found["dv_tensor"]


@contextlib.contextmanager
def tables(made: Callable[[str], Any]) -> Iterator[None]:
    """Other tables of compiled kernels for a while, one made for each name of TABLES."""
    with contextlib.ExitStack() as stack:
        for name in TABLES:
            stack.enter_context(replaced(owner(name), compile_cache=made(name)))
        yield


class Everything:
    """A table that has every kernel, none of which does anything; it notes the keys that it is asked for."""

    def __init__(self, name: str, seen: dict[tuple[str, str], None]) -> None:
        self._name, self._seen = name, seen

    def __contains__(self, key: Any) -> bool:
        self._seen[self._name, hash_of(key)] = None
        return True

    def __getitem__(self, key: Any) -> Callable[..., None]:
        return nothing


class AllButOne:
    """A table that has every kernel but one, the first of that hash, which is compiled and kept in `made`."""

    def __init__(self, name: str, wanted: tuple[str, str], made: list[Any]) -> None:
        self._name, self._wanted, self._made = name, wanted, made

    def __contains__(self, key: Any) -> bool:
        return (self._name, hash_of(key)) != self._wanted or bool(self._made)

    def __setitem__(self, key: Any, function: Any) -> None:
        self._made.append(function)

    def __getitem__(self, key: Any) -> Callable[..., None]:
        return nothing


def dry(call: Call, given: dict[str, Tensor]) -> None:
    """The call up to its kernels, which the tables at hand have, or which are compiled into them."""
    o, lse = forward(call)
    if call.do is not None:
        backward(call, o, lse, given)


@contextlib.contextmanager
def seeing_a_gpu(arch: str) -> Iterator[None]:
    """In it the package's host code takes CPU tensors for those of a GPU of `arch`, 'sm_90a' or 'sm_100a'. Kernels are
    compiled for TVM-FFI: that of blocks of 64 on sm_90, which is compiled for ctypes' convention, too."""
    gpu = FakeGpu(arch)
    capability = gpu.capability
    interface, lists, around = (_module(TABLES[name][0]) for name in ("fwd", "bwd_lists", "bwd_pre"))
    room = torch.empty
    caches = [_module("api")._device_arch_for_index, interface._get_device_arch_for_device]
    caches += [interface._get_device_sm_count_for_device, lists._device_capability]
    caches += [x for x in vars(around).values() if hasattr(x, "cache_clear")]
    for cache in caches:
        cache.cache_clear()
    try:
        with (
            replaced(torch.cuda, **gpu.functions()),
            replaced(lists, get_compute_capability=lambda index=None: capability),
            replaced(interface, cute=_TvmFfi(interface.cute), _to_cute_tensor=_for_tvm_ffi(interface._to_cute_tensor)),
            replaced(torch, empty=aligned(torch.empty, room), empty_like=aligned(torch.empty_like, room)),
            replaced(Tensor, is_cuda=True),
            _processors(gpu.multi_processor_count),
        ):
            yield
    finally:
        for cache in caches:
            cache.cache_clear()


class _TvmFfi:
    """cutlass.cute, whose `compile` is for TVM-FFI whether or not it is told."""

    def __init__(self, cute: Any) -> None:
        self._cute = cute

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cute, name)

    def compile(self, kernel: Any, *arguments: Any, options: str = "--enable-tvm-ffi") -> Any:
        """See cutlass.cute.compile."""
        return self._cute.compile(kernel, *arguments, options=options)


LAUNCHING = False  # True: a tensor of a call without TVM-FFI is given to the kernel as it is


def _for_tvm_ffi(make: Callable[..., Any]) -> Callable[..., Any]:
    def to_cute_tensor(t: Tensor, *args: Any, enable_tvm_ffi: bool = True, **options: Any) -> Any:
        return t.detach() if LAUNCHING and not enable_tvm_ffi else make(t, *args, **options)

    return to_cute_tensor


@contextlib.contextmanager
def _processors(count: int) -> Iterator[None]:
    """What the compiler asks a GPU: the number of processors, which persistent kernels hold, and their memory."""
    from cutlass.base_dsl.runtime import cuda
    from cutlass.utils import HardwareInfo

    def start(self: Any, device_id: int = 0) -> None: ...

    def attribute(name: Any, device_id: int = 0) -> int:
        if name.name != "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR":
            raise ValueError(f"the compiler asks a GPU for {name}")
        return SHARED_MEMORY

    with (
        replaced(HardwareInfo, __init__=start, get_device_multiprocessor_count=lambda self: count),
        replaced(cuda, get_device_attribute=attribute),
    ):
        yield


def planned(call: Call, given: dict[str, Tensor], arch: str) -> list[tuple[str, str]]:
    """What a call on CPU tensors would compile for `arch`: (table, hash of its key), each once, in the order of the
    launches."""
    seen: dict[tuple[str, str], None] = {}
    with seeing_a_gpu(arch), tables(lambda name: Everything(name, seen)), _launching():
        dry(call, given)
    return list(seen)


def compiled(call: Call, given: dict[str, Tensor], arch: str, wanted: tuple[str, str]) -> Any:
    """The one kernel of a call that `wanted` names (see `planned`), compiled for `arch` in this process, which has no
    GPU. Raises KeyError where the call has no such kernel."""
    from cutlass.cutlass_dsl import CuTeDSL

    from fuzz.devices.emulator.frontends.cute_functions import cpu_tensors_as_on_gpu

    made: list[Any] = []
    settings = CuTeDSL._get_dsl().envar
    settings.arch = arch
    try:
        with seeing_a_gpu(arch), tables(lambda name: AllButOne(name, wanted, made)), cpu_tensors_as_on_gpu():
            dry(call, given)
    finally:
        del settings.arch
    if not made:
        raise KeyError(f"the call compiles no {wanted[0]} with the key {wanted[1]}")
    return made[0]


@contextlib.contextmanager
def _launching() -> Iterator[None]:
    global LAUNCHING
    LAUNCHING = True
    try:
        yield
    finally:
        LAUNCHING = False


@contextlib.contextmanager
def taking_cpu_tensors(arch: str, gpu: Any, made: Callable[[str], Any]) -> Iterator[None]:
    """In it the package's host code takes CPU tensors for those of a GPU of `arch`; its launches run on `gpu`, a
    cute_functions.Device, its kernels are those of the tables that are made. Raises EmulationError for what the
    emulated GPU finds."""
    from fuzz.devices.emulator.frontends.cute_functions import on_emulated_gpu

    with on_emulated_gpu(arch, gpu), seeing_a_gpu(arch), tables(made), _launching():
        yield


LAUNCHED: list[str] = []  # names of the kernels that the run at hand has launched


class _Live:
    """A table backed by one that the process keeps, whose kernels are launched or not, and note it."""

    def __init__(self, name: str, launches: bool) -> None:
        self._name, self._launches = name, launches
        self._kept = _KEPT.setdefault(name, {})

    def __contains__(self, key: Any) -> bool:
        return key in self._kept

    def __setitem__(self, key: Any, function: Any) -> None:
        self._kept[key] = function

    def __getitem__(self, key: Any) -> Callable[..., None]:
        if not self._launches:
            return nothing
        LAUNCHED.append(f"{self._name} {hash_of(key)[:8]}")
        return self._kept[key]


_KEPT: dict[str, dict[Any, Any]] = {}


@contextlib.contextmanager
def on_gpu(*, launches: bool) -> Iterator[None]:
    """In it the package's kernels are compiled and kept, and launched on the GPU or not."""
    with tables(lambda name: _Live(name, launches)):
        yield
