"""The recipe for flash_attn.cute's kernels: one of those that a case's call launches, compiled ahead.

Imports FlashAttention-4 when it is imported itself, so that the compile server does so once and not every build.
"""

from __future__ import annotations

from typing import Any

from cutlass.cutlass_dsl import CuTeDSL
from flash_attn.cute import interface  # noqa: F401

from fuzz.compiling.exported import Exported
from fuzz.targets.flash_attention_4 import mask_mod  # noqa: F401


def kernel(options: dict[str, Any], arch: str) -> Any:
    """`case`: JSON of a case that launches it; `kernel` and `key`: as flash_attention_4_tables.planned names it."""
    from fuzz.core.case import from_json
    from fuzz.targets.flash_attention_4.compile_cache import compiled
    from fuzz.targets.flash_attention_4.target import dry_call

    CuTeDSL._get_dsl().envar.lineinfo = True  # findings of the emulated GPU name the source line
    call = dry_call(from_json(options["case"], where="recipe"))
    return Exported(compiled(call, arch, (options["kernel"], options["key"])))
