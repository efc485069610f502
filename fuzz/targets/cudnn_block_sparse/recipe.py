"""The recipe for cudnn.block_sparse's kernels: one of those that a case's call launches, compiled ahead.

Imports the package when it is imported itself, so that the compile server does so once and not every build.
"""

from __future__ import annotations

from typing import Any

from cudnn.block_sparse_attention import _interface  # noqa: F401
from cutlass.cutlass_dsl import CuTeDSL

from fuzz.compiling.exported import Exported


def kernel(options: dict[str, Any], arch: str) -> Any:
    """`case`: JSON of a case that launches it; `kernel` and `key`: as package.planned names it."""
    from fuzz.core.case import from_json
    from fuzz.targets.cudnn_block_sparse.package import compiled
    from fuzz.targets.cudnn_block_sparse.target import dry_call

    CuTeDSL._get_dsl().envar.lineinfo = True  # findings of the emulated GPU name the source line
    call, given = dry_call(from_json(options["case"], where="recipe"), arch)
    return Exported(compiled(call, given, arch, (options["kernel"], options["key"])))
