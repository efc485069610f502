"""Launch: one kernel with its grid and arguments, as a value that is run, or only compiled; where tensors may lie."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from triton.runtime import driver
from triton.runtime.interpreter import InterpretedFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.sdpa.tiles import widen

INTERPRETED = isinstance(widen, InterpretedFunction)


@dataclass(frozen=True)
class Launch:
    """One kernel launch.

    kernel      a @triton.jit function
    programs    size of its one-dimensional grid; 0 launches nothing
    runtime     arguments whose values never cause a compilation, only their dtypes do
    constants   constexpr arguments: each new combination is a compilation
    options     num_warps and num_stages
    """

    kernel: Any
    programs: int
    runtime: dict[str, Any]
    constants: dict[str, Any]
    options: dict[str, int]

    def run(self) -> None:
        """Launches the kernel, compiling it first where needed."""
        if self.programs > 0:
            self.kernel[(self.programs,)](**self.runtime, **self.constants, **self.options)

    def compile(self) -> None:
        """Compiles and loads what `run` would launch, and launches nothing. Does nothing under Triton's interpreter."""
        if self.programs > 0 and not INTERPRETED:
            built = self.kernel.warmup(grid=(self.programs,), **self.runtime, **self.constants, **self.options)
            if hasattr(built, "_init_handles"):
                built._init_handles()

    @property
    def compile_key(self) -> tuple:
        """What decides whether two launches share one compiled kernel."""
        types = [(name, _type_key(value)) for name, value in self.runtime.items()]
        constants = [(name, getattr(value, "__name__", str(value))) for name, value in self.constants.items()]
        return (self.kernel.__name__, *types, *constants, *self.options.items())


def compile_launches(launches: list[Launch]) -> int:
    """Compiles and loads the kernels of launches; how many launches there are."""
    for launch in launches:
        launch.compile()
    return len(launches)


def check_device(query: Tensor) -> None:
    """Raises RuntimeError for a CPU tensor where Triton compiles for a GPU that is not an emulated one."""
    if query.device.type == "cpu" and not INTERPRETED and not _takes_cpu_tensors():
        raise RuntimeError(
            "query: got a CPU tensor where Triton compiles for a GPU; to run on a CPU, set TRITON_INTERPRET=1 in "
            "the environment before triton is imported, or use fuzz.devices.emulator.emulated"
        )


def _takes_cpu_tensors() -> bool:
    """True if Triton's active driver is one whose tensors are the CPU's, as that of an emulated GPU."""
    try:
        return driver.active.get_active_torch_device().type == "cpu"
    except RuntimeError:  # no driver
        return False


def _type_key(value: Any) -> str:
    if isinstance(value, TensorDescriptor):
        return f"descriptor {value.base.dtype} {tuple(value.block_shape)}"
    if isinstance(value, Tensor):
        return f"pointer {value.dtype}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_type_key, value))})"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    return type(value).__name__
