"""The recipe for cudnn.nsa_selection's kernels, compiled ahead.

Imports the package when it is imported itself, so that the compile server does so once and not every build.
"""

from __future__ import annotations

from typing import Any

from cudnn.native_sparse_attention.selection import api  # noqa: F401
from cutlass.cutlass_dsl import CuTeDSL

from fuzz.compiling.exported import Exported


def kernel(options: dict[str, Any], arch: str) -> Any:
    """`case`: JSON of a case that launches it; `key`: as package.planned names it."""
    from fuzz.core.case import from_json
    from fuzz.targets.cudnn_nsa.package import compiled
    from fuzz.targets.cudnn_nsa.target import dry_call

    CuTeDSL._get_dsl().envar.lineinfo = True  # findings of the emulated GPU name the source line
    return Exported(compiled(dry_call(from_json(options["case"], where="recipe")), arch, options["key"]))
