"""Triton's interpreter, made to spend its time on the kernel, and to know NumPy 2.5.

A `@triton.jit` function that a kernel calls first has all of `triton.language` looked through and replaced by what the
interpreter runs, at every call, and never puts back what it replaced; once for each function does the same. In
kernels/sdpa, which is made of small functions, this was more than half of the time. A launch does the same and puts all
back at its end; what it replaces is the same at every launch of a kernel, so that it is looked through at the first one
alone. Relies on Triton 3.6 to 3.9, whose `InterpretedFunction.__call__` is `_call` below but for that; a Triton without
these names is left as it is.
"""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def patch_interpreter() -> bool:
    """Once in a process, before a kernel is interpreted; whether this Triton is known."""
    from triton.runtime import interpreter

    names = ("InterpretedFunction", "InterpreterError", "_patch_lang", "_patch_lang_tensor", "_LangPatchScope")
    if not all(hasattr(interpreter, name) for name in names):
        return False
    function, error, language, patch, scope = (getattr(interpreter, name) for name in names)
    if not hasattr(function, "rewrite") or not hasattr(scope, "set_attr"):
        return False
    met: set[Any] = set()
    replaced: dict[Any, list[tuple[Any, str, Any]]] = {}  # by a kernel's function: what stands where while it runs

    def _language(fn: Any) -> Any:
        if fn in replaced:
            again = scope()
            for where, name, value in replaced[fn]:
                again.set_attr(where, name, value)
            return again
        first = language(fn)
        places = dict.fromkeys((where, name) for where, name, _ in first._changes)
        replaced[fn] = [(where, name, vars(where)[name]) for where, name in places]
        return first

    def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.fn not in met:
            met.add(self.fn)
            language(self.fn)
        inner = self.rewrite()
        try:
            return inner(*args, **kwargs)
        except Exception as raised:
            raise error(repr(raised)) from raised

    def _patch(tensor: Any, scope: Any) -> None:
        """Triton 3.6 takes int() of an array of one element, which NumPy 2.5 refuses."""
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    function.__call__ = _call
    interpreter._patch_lang_tensor = _patch
    interpreter._patch_lang = _language
    return True


__all__ = ["patch_interpreter"]
