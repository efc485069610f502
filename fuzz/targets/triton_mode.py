"""How Triton runs in this process: in its interpreter, or compiled, for a GPU or the emulated one.

Triton asks once, when it is imported, so a process has one or the other. The user's target files decide: those that
declare a target with device="emulator" need kernels that are compiled; every other file is interpreted on a machine
without a GPU.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeAlias

Mode: TypeAlias = Literal["interpreted", "emulated"]
VARIABLE = "TRITON_INTERPRET"
_chosen: Mode | None = None  # by the files that were loaded; None: Triton's interpreter, where there is no GPU


class TritonModeError(ValueError):
    """Files of which one needs Triton's interpreter and another one the emulated GPU; one line."""


def choose(files: Sequence[str]) -> None:
    """Sets this process up for the targets of `files`, before they are imported. Raises TritonModeError."""
    modes = {file: mode for file in files if (mode := mode_of(file)) is not None}
    if len(set(modes.values())) > 1:
        names = {mode: next(file for file, one in modes.items() if one == mode) for mode in modes.values()}
        raise TritonModeError(
            f"{names['emulated']} has a target for the emulated GPU, {names['interpreted']} one for Triton's "
            "interpreter: a session has one of the two; run them one after the other"
        )
    global _chosen
    _chosen = "emulated" if "emulated" in modes.values() else None
    if _chosen:
        os.environ.pop(VARIABLE, None)
    elif files:
        os.environ.setdefault(VARIABLE, "1")


def missing(mode: Mode) -> str | None:
    """Reason why kernels cannot run this way in this process, or None."""
    if find_spec("triton") is None:
        return "needs triton (pip install triton)"
    if mode == "emulated" and _interprets():
        return "needs Triton without its interpreter, which this process has; unset TRITON_INTERPRET"
    if mode == "interpreted" and _chosen == "emulated":
        return "needs Triton's interpreter; the session's target files run Triton on the emulated GPU"
    return None


def _interprets() -> bool:
    """True if Triton was imported in this process so that it interprets."""
    if (triton := sys.modules.get("triton")) is None or not hasattr(triton, "runtime"):
        return False
    from triton.language import standard
    from triton.runtime.interpreter import InterpretedFunction

    return isinstance(standard.zeros, InterpretedFunction)


def mode_of(file: str) -> Mode | None:
    """How a target file needs Triton; None where it does not import it, or cannot be read."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    if any(_declares_emulated(node) for node in ast.walk(tree)):
        return "emulated"
    return "interpreted" if any(_imports_triton(node) for node in ast.walk(tree)) else None


def _declares_emulated(node: ast.AST) -> bool:
    """True for a call of `target` with device="emulator"."""
    if not isinstance(node, ast.Call):
        return False
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    device = next((word.value for word in node.keywords if word.arg == "device"), None)
    return name == "target" and isinstance(device, ast.Constant) and device.value == "emulator"


def _imports_triton(node: ast.AST) -> bool:
    match node:
        case ast.Import(names=names):
            return any(one.name.partition(".")[0] == "triton" for one in names)
        case ast.ImportFrom(module=str(module)):
            return module.partition(".")[0] == "triton"
    return False
