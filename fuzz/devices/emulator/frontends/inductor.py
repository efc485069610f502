"""PyTorch's compiler on the emulated GPU: `torch.compile` makes of code on CPU tensors the Triton kernels that it makes
on an H200, FlexAttention's among them, and these run emulated.

with emulated("sm_90a"), gpu_kernels("sm_90a"):
    o = torch.compile(flex_attention)(q, k, v)  # CPU tensors

No build of PyTorch with CUDA is needed: Inductor can generate Triton for CPUs (its setting cpu_backend), and asks
Triton for a backend named 'cpu', which here is the emulated GPU. What Inductor asks CUDA (capability, number of
multiprocessors, the table of tile sizes) is answered as by an H200. FlexAttention refuses gradients on CPUs, and has a
lowering of its own for them: both are left out. Relies on PyTorch 2.13's names; another version that lacks them is
refused.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from fuzz.devices.emulator.frontends.triton_driver import PROCESSORS, EmulatedDriver

_SETTINGS = {
    "cpu_backend": "triton",
    "compile_threads": 1,
    "triton.autotune_pointwise": False,  # times kernels, which says nothing here
}


@contextmanager
def gpu_kernels(arch: str = "sm_90a") -> Iterator[None]:
    """Block in which `torch.compile` generates a GPU's kernels for CPU tensors; to be inside of, or around, `emulated`.

    What was compiled in the block is to be called in such a block too. Raises NotImplementedError where this version of
    PyTorch is not known.
    """
    import torch._inductor.config as settings
    import triton
    from torch._inductor.choices import InductorChoices
    from torch._inductor.template_heuristics.triton import CUDAConfigHeuristic
    from triton.backends import Backend

    capability = divmod(int("".join(filter(str.isdigit, arch))), 10)
    device = SimpleNamespace(multi_processor_count=PROCESSORS, major=capability[0], minor=capability[1], warp_size=32)
    with ExitStack() as patches:
        patches.enter_context(settings.patch(_SETTINGS))
        for where, name, value in (
            (InductorChoices, "get_config_heuristics", lambda self, device_type="cuda": CUDAConfigHeuristic()),
            (torch.cuda, "get_device_capability", lambda device=None: capability),
            (torch.cuda, "get_device_properties", lambda of=None: device),
        ):
            patches.enter_context(patch.object(where, name, value))
        patches.enter_context(patch.dict(triton.backends.backends, cpu=Backend(_Compiler, EmulatedDriver)))
        patches.enter_context(_flex_attention())
        yield


class _Compiler:
    """Compiler of Triton's backend 'cpu': that of NVIDIA's GPUs, for the arch of the active driver."""

    def __new__(cls, target: Any) -> Any:
        from triton.backends.nvidia.compiler import CUDABackend
        from triton.runtime import driver

        return CUDABackend(driver.active.get_current_target())

    @staticmethod
    def supports_target(target: Any) -> bool:
        """See BaseBackend."""
        return target.backend == "cpu"


@contextmanager
def _flex_attention() -> Iterator[None]:
    """FlexAttention takes CPU tensors for a GPU's."""
    import torch.nn.attention.flex_attention as module
    from torch._inductor.lowering import lowerings

    operator, options = torch.ops.higher_order.flex_attention, module._apply_kernel_options

    def with_lse(
        query: Any, key: Any, value: Any, return_lse: bool, kernel_options: Any, return_aux: Any = None
    ) -> Any:
        """Kernel options, where the backward pass has its LSE; traced by Dynamo."""
        found = options(query, key, value, return_lse, kernel_options, return_aux)
        if torch.is_grad_enabled():
            found["OUTPUT_LOGSUMEXP"] = True
        return found

    with (
        patch.object(module, "_validate_device", lambda query, key, value: None),
        patch.object(module, "_apply_kernel_options", with_lse),
        patch.dict(lowerings, {operator: _gpu_lowering()}),
    ):
        yield


@functools.cache
def _gpu_lowering() -> Callable[..., Any]:
    """Inductor's lowering of FlexAttention's forward, without the branch for CPUs."""
    from torch._inductor.kernel.flex import flex_attention as module
    from torch._inductor.lowering import lowerings, register_lowering

    tree = ast.parse(textwrap.dedent(inspect.getsource(module.flex_attention)))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    kept = [node for node in definition.body if not (isinstance(node, ast.If) and "lower_cpu" in ast.unparse(node))]
    if len(kept) != len(definition.body) - 1:
        raise NotImplementedError(f"FlexAttention's lowering in PyTorch {torch.__version__} is not known: no lower_cpu")
    definition.body, definition.decorator_list = kept, []
    names = dict(vars(module))
    exec(compile(tree, module.__file__, "exec"), names)
    operator = torch.ops.higher_order.flex_attention
    before = lowerings[operator]
    try:
        register_lowering(operator, type_promotion_kind=None)(names["flex_attention"])
        return lowerings[operator]
    finally:
        lowerings[operator] = before
