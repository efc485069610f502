"""How Triton runs in a process without a GPU: in its interpreter, or compiled, for the emulated GPU.

Triton asks once, when it is imported, so a process has one or the other. On the device 'emulator' kernels are compiled,
on 'interpreter' they are interpreted. On the host they are compiled too, unless there are target files of the user's:
those that declare a target with device="emulator" need kernels that are compiled; all others are interpreted.
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
_chosen: Mode | None = None  # by the device and the files that were loaded


class TritonModeError(ValueError):
    """Files of which one needs Triton's interpreter and another one the emulated GPU; one line."""


def choose(files: Sequence[str], device: str = "host") -> None:
    """Sets this process up for the targets of `files` on `device`, one without a GPU, before the files are imported.
    Raises TritonModeError."""
    global _chosen
    _chosen = mode(files, device)
    if not files:
        return  # nothing is imported in this process
    if _chosen == "emulated":
        os.environ.pop(VARIABLE, None)
    else:
        os.environ.setdefault(VARIABLE, "1")


def environment(files: Sequence[str], device: str) -> dict[str, str]:
    """The variable with which a process that loads `files` for `device` is to start: whatever imports Triton first
    (PyTorch's compiler does it too), it is in the right mode."""
    return {VARIABLE: "0" if mode(files, device) == "emulated" else "1"}


def mode(files: Sequence[str], device: str) -> Mode:
    """How Triton kernels run in a session with `files` on `device`, one without a GPU. Raises TritonModeError."""
    if device == "emulator":
        return "emulated"
    declared = _declared(files)
    if device == "interpreter" and declared == "emulated":
        raise TritonModeError(
            f"{next(file for file in files if mode_of(file) == 'emulated')} has a target for the emulated GPU: "
            "leave out --device interpreter"
        )
    if device == "interpreter":
        return "interpreted"
    return declared or ("interpreted" if files else "emulated")


def missing(wanted: Mode) -> str | None:
    """Reason why kernels cannot run this way in this process, or None."""
    if find_spec("triton") is None:
        return "needs triton (pip install triton)"
    if wanted == "emulated" and _interprets():
        return "needs Triton without its interpreter, which this process has; unset TRITON_INTERPRET"
    if wanted == "interpreted" and _chosen == "emulated":
        return "needs Triton's interpreter; the session runs Triton on the emulated GPU"
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
