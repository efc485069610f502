"""A numba function compiled as one program with all that it calls, by a process of its own.

numba compiles every function for itself: it optimises it together with all that it calls, makes machine code of that,
and two wrappers, one for calls from Python. Of the interpreter's 400 functions only one is ever called from Python.
`compile_whole` leaves all others as LLVM IR, and optimises the sum once. It changes numba's inside while it runs, and
functions compiled so cannot be called from Python in that process, so `compile_apart` has a process of its own do it;
the caller then loads the code from numba's cache. Where the process fails, nothing is in the cache, and the caller's
own call compiles as numba does.
"""

from __future__ import annotations

import gc
import importlib
import os
import subprocess
import sys
from typing import Any

from numba import types

from fuzz.process.parent_death import leave_with_parent

SCRIPT = """
import sys
sys.path[:] = {path!r}
from fuzz.devices.emulator.state.whole_program import compile_whole
compile_whole({module!r}, {name!r}, {parent})
"""
ENVIRONMENT = {"NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING": "1"}  # of messages that nobody sees


def is_cached(dispatcher: Any) -> bool:
    """True if numba's cache has code of this function's file as it is: of this path, size and time."""
    return bool(dispatcher._cache._cache_file._load_index())


def compile_apart(module: str, name: str) -> bool:
    """Compiles the function `name` of `module`, which takes one int64 and has cache=True, into numba's cache. Tells
    whether that worked."""
    if not sys.executable:  # Python inside of another program
        return False
    command = [sys.executable, "-c", SCRIPT.format(path=sys.path, module=module, name=name, parent=os.getpid())]
    quiet = subprocess.DEVNULL
    environment = os.environ | ENVIRONMENT
    try:
        done = subprocess.run(command, stdin=quiet, stdout=quiet, stderr=quiet, env=environment, check=False)
    except OSError:  # no room for a process
        return False
    return done.returncode == 0


def compile_whole(module: str, name: str, parent: int) -> None:
    """Does it in this process, which is for nothing else and ends with its parent."""
    if os.getppid() != parent:
        return
    leave_with_parent()
    gc.disable()  # numba's graphs of objects are large, and a process that soon ends needs none collected
    dispatcher: Any = getattr(importlib.import_module(module), name)
    _leave_the_rest_as_ir(dispatcher.py_func)
    dispatcher.compile((types.int64,))


def _leave_the_rest_as_ir(only: Any) -> None:
    """From here on numba makes machine code and wrappers of the function `only` alone."""
    from numba.core import codegen, cpu, dispatcher

    compiler: Any = dispatcher.__dict__["_FunctionCompiler"]
    context: Any = cpu.CPUContext
    library_type: Any = codegen.CPUCodeLibrary
    customized, executable, finalize = compiler._customize_flags, context.get_executable, library_type.finalize
    wanted: list[Any] = []

    def flags_of(self: Any, flags: Any) -> Any:
        flags = customized(self, flags)
        if self.py_func is not only:
            flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        return flags

    def executable_of(self: Any, library: Any, fndesc: Any, env: Any) -> Any:
        if (fndesc.modname, fndesc.qualname) == (only.__module__, only.__qualname__):
            wanted.append(library)
            return executable(self, library, fndesc, env)
        return [].append  # numba wants a built-in function of its own for each, and never calls it

    def finalize_whole(self: Any) -> None:
        if self not in wanted:
            self._finalized = True
            return
        self._linking_libraries = _below(self)
        finalize(self)
        missing = [
            one.name for one in self._final_module.functions if one.is_declaration and one.name.startswith("_ZN")
        ]
        if missing:
            raise AssertionError(f"not linked: {missing}")

    compiler._customize_flags = flags_of
    context.get_executable = executable_of
    library_type.finalize = finalize_whole


def _below(library: Any) -> list[Any]:
    """All code that `library` calls, callers before what they call: LLVM's linker leaves out a function that nothing
    linked before it refers to."""
    done: dict[Any, None] = {}

    def visit(one: Any) -> None:
        for callee in one._linking_libraries:
            if callee not in done:
                visit(callee)
        done[one] = None

    visit(library)
    return [one for one in reversed(done) if one is not library]
