"""How Triton runs in a process: compiled, for a GPU or the emulated one, or in its interpreter.

Triton asks once, when it is imported, so a process has one or the other. The user's target files decide: one that
declares a target with device="emulator" needs kernels that are compiled, one that imports Triton for targets of the
host needs the interpreter on a machine without a GPU. Where no file says, $TRITON_INTERPRET=1 asks for the interpreter,
as everywhere with Triton; else kernels are compiled, and the bundled ones run on the emulated GPU.
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
_ON = ("1", "true", "on", "yes", "y")  # as Triton reads its variables
_asked: Mode = "interpreted" if os.environ.get(VARIABLE, "").lower() in _ON else "emulated"  # before files change it
_chosen: Mode | None = None  # by the files that were loaded


class TritonModeError(ValueError):
    """Files of which one needs Triton's interpreter and another one the emulated GPU; one line."""


def choose(files: Sequence[str]) -> None:
    """Sets this process up for the targets of `files`, before they are imported. Raises TritonModeError."""
    global _chosen
    _chosen = _declared(files)
    if _chosen == "emulated":
        os.environ.pop(VARIABLE, None)
    elif _chosen == "interpreted":
        os.environ[VARIABLE] = "1"


def chosen() -> Mode:
    """How the bundled Triton kernels run on the host, beside the files of the last `choose`."""
    return _chosen or _asked


def environment(files: Sequence[str]) -> dict[str, str]:
    """The variable with which a process that loads `files` on the host is to start: whatever imports Triton first
    (PyTorch's compiler does it too), it is in the right mode."""
    try:
        mode = _declared(files) or _asked
    except TritonModeError:  # the process itself says so
        mode = _asked
    return {VARIABLE: "1" if mode == "interpreted" else "0"}


def missing(mode: Mode) -> str | None:
    """Reason why kernels cannot run this way in this process, or None."""
    if find_spec("triton") is None:
        return "needs triton (pip install triton)"
    if mode == "emulated" and _interprets():
        return "needs Triton without its interpreter, which this process has; unset TRITON_INTERPRET"
    return None


def mode_of(file: str) -> Mode | None:
    """How a target file needs Triton; None where it does not import it, or cannot be read."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    if any(_declares_emulated(node) for node in ast.walk(tree)):
        return "emulated"
    return "interpreted" if any(_imports_triton(node) for node in ast.walk(tree)) else None


def _declared(files: Sequence[str]) -> Mode | None:
    """The mode that `files` need; None: they do not say. Raises TritonModeError."""
    names: dict[Mode, str] = {}
    for file in files:
        if (mode := mode_of(file)) is not None:
            names.setdefault(mode, file)
    if len(names) > 1:
        raise TritonModeError(
            f"{names['emulated']} has a target for the emulated GPU, {names['interpreted']} one for Triton's "
            "interpreter: a session has one of the two; run them one after the other"
        )
    return next(iter(names), None)


def _interprets() -> bool:
    """True if Triton was imported in this process so that it interprets."""
    if (triton := sys.modules.get("triton")) is None or not hasattr(triton, "runtime"):
        return False
    from triton.language import standard
    from triton.runtime.interpreter import InterpretedFunction

    return isinstance(standard.zeros, InterpretedFunction)


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
