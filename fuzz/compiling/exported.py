"""A function compiled for TVM-FFI, to be exported as the cache wants it; for recipes of foreign CuTe DSL kernels."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fuzz.compiling.cache import INTERFACE, OBJECT


class Exported:
    """What a recipe returns for a function with TVM-FFI's calling convention. Its interface is that of every such
    function, so the header file only names it."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.artifacts = SimpleNamespace(PTX=function.artifacts.PTX)

    def export_to_c(self, folder: str, stem: str, prefix: str) -> None:
        """Writes the object file and the header."""
        assert f"{stem}.o" == OBJECT
        self._function.export_to_c(object_file_path=str(Path(folder) / OBJECT), function_name=prefix)
        (Path(folder) / INTERFACE).write_text(f"/* a TVM FFI function: __tvm_ffi_{prefix} */\n")
