"""The text of a call of a user's own function (@target): its source, and the arguments that it names."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz.core.case import Case
from fuzz.core.script_call import ScriptError, Text
from fuzz.targets.user_function.function_arguments import arguments_of
from fuzz.targets.user_function.source_excerpt import binds, excerpt
from fuzz.targets.user_function.whole_source import imports, module_of, needs_whole_file, search_path, whole_file
from oracles.masks import Align
from oracles.problem import AnyProblem

_NAMES = """
DEVICE DTYPE EPS FP32 SCALE STREAMS _UNIT answer at_k at_q b bias compare different do drawn exactly formulas got
guarded half heads hidden keep kernel lay len_k len_q listed lse module n_k n_q name names normal o one packed_formulas
pick problem q k v random_bits rounding run runs seen tiled torch want wrong x
"""
RESERVED = frozenset(_NAMES.split())  # of the script itself


def user_call(
    case: Case,
    function: Callable[..., Any],
    named: frozenset[str],
    *,
    align: Align = "top_left",
    axes: str = "bhsd",
    host: bool = False,
) -> Text:
    """The call of `function` for `case`; `named` are its parameters. host: no GPU, so that Triton interprets.

    Raises ScriptError where its source cannot be read.
    """
    p = case.problem
    offered = {name: argument.text(case, align) for name, argument in arguments_of(named).items()}
    offered |= {name: repr(value) for name, value in case.variant.items() if name in named}
    q, k, v = (f"{x}.transpose(1, 2)" if axes == "bshd" and p.layout == "padded" else x for x in "qkv")
    given = ", ".join([q, k, v, *(f"{name}={text}" for name, text in offered.items())])
    try:
        file = Path(inspect.getsourcefile(function) or "")
        source = file.read_text()
    except (OSError, TypeError) as error:
        raise ScriptError(
            f"target {case.target!r}: the source of {function.__qualname__} cannot be read: {error}"
        ) from None
    if needs_whole_file(source, function):
        taken, text = source, whole_file(source, case.target)
    else:
        taken = excerpt(source, [function.__name__], typing=True)
        text = _beside(taken, function.__name__)
    setup = search_path(taken, file.resolve()) + text
    if host and imports(taken, "triton"):
        setup = 'os.environ.setdefault("TRITON_INTERPRET", "1")  # no GPU\n\n' + setup
    if "problem" in named:
        setup += f"\n\nproblem = {_problem(p)}  # what the harness passes; its mask is `keep`"
    used = [f"import {name}" for name in ("os", "sys", "types", "tempfile", "importlib.util") if f"{name}." in setup]
    call: tuple[str, ...] = (
        f"answer = kernel({given})",
        "o, lse = answer if isinstance(answer, tuple) else (answer, None)",
    )
    if "return" in taken and not _may_return_tuple(taken, function.__name__):
        call = (f"o = kernel({given})",)
    if axes == "bshd" and p.layout == "padded":
        call = (*call, "o = o.transpose(1, 2)")
    return Text(call, tuple(used), setup, mask="mask" in named, lse=False)


def _beside(taken: str, name: str) -> str:
    """The source and `kernel`; in a module of its own where it has names that the script has too."""
    tree = ast.parse(taken)
    if not {bound for node in tree.body for bound in binds(node)} & RESERVED:
        return f"{taken}\n\n\nkernel = {name}"
    return module_of(f"import torch\n\n{taken}") + f"\nkernel = module.{name}"


def _may_return_tuple(source: str, name: str) -> bool:
    """True if the function may return (O, LSE): only a plain operation is certain not to."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            returns = [inner.value for inner in ast.walk(node) if isinstance(inner, ast.Return)]
            return not all(isinstance(value, ast.BinOp) for value in returns)
    return True


def _problem(p: AnyProblem) -> str:
    fields = ("lengths_q", "lengths_k", "heads_q", "heads_kv", "dim", "dim_v", "dtype", "layout", "softcap", "backward")
    more = {"batch": p.batch, "len_q": p.len_q, "len_k": p.len_k, "group": p.group, "scale_value": p.scale_value}
    told = {name: getattr(p, name) for name in fields} | more
    return f"types.SimpleNamespace({', '.join(f'{name}={value!r}' for name, value in told.items())})"
