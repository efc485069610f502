"""Block-sparse flash attention in CuTe DSL, with a deterministic backward pass, for sm_80 to sm_120.

Users need what this package names: the attention, builders of block lists, and the planner. spec/ says what one
compiled kernel is, lists/ and planner/ make block lists, common/, forward/ and backward/ are the kernels, compile/
builds them without a GPU, launch/ calls them on torch tensors. Importing this package imports neither cutlass nor
torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernels.blocksparse.api import block_sparse_attention
    from kernels.blocksparse.lists.bands import band, causal, window
    from kernels.blocksparse.lists.builder import dense
    from kernels.blocksparse.lists.from_block_mask import from_block_mask
    from kernels.blocksparse.lists.from_mask import from_grid, from_mask, from_predicate
    from kernels.blocksparse.lists.intervals import documents, intervals
    from kernels.blocksparse.planner.planner import least_blocking

__all__ = [
    "band",
    "block_sparse_attention",
    "causal",
    "dense",
    "documents",
    "from_block_mask",
    "from_grid",
    "from_mask",
    "from_predicate",
    "intervals",
    "least_blocking",
    "window",
]

_MODULES = {
    "api": ("block_sparse_attention",),
    "lists.bands": ("band", "causal", "window"),
    "lists.builder": ("dense",),
    "lists.from_block_mask": ("from_block_mask",),
    "lists.from_mask": ("from_grid", "from_mask", "from_predicate"),
    "lists.intervals": ("documents", "intervals"),
    "planner.planner": ("least_blocking",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first asked for."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
