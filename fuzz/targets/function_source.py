"""The text of a call of a user's own function (@target): its source, and the arguments that it names."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz.core.case import Case
from fuzz.core.script_call import Text
from fuzz.targets.source_excerpt import binds, excerpt
from oracles.masks import Causal
from oracles.problem import Problem, cumulative

_NAMES = """
DEVICE DTYPE EPS FP32 SCALE STREAMS _UNIT answer at_k at_q b bias compare different do drawn exactly formulas got
guarded half heads hidden keep kernel lay len_k len_q listed lse module n_k n_q name names normal o one packed_formulas
pick problem q k v random_bits rounding run runs seen tiled torch want wrong x
"""
RESERVED = frozenset(_NAMES.split())  # of the script itself


def user_call(case: Case, function: Callable[..., Any], asked: frozenset[str]) -> Text:
    """The call of `function` for `case`; `asked` are the names of its parameters.

    Raises ValueError where its source cannot be read.
    """
    p = case.problem
    offered = {
        "mask": "keep",
        "causal": repr(p.mask == Causal()),
        "scale": "SCALE",
        "softcap": repr(p.softcap),
        "bias": "bias" if p.bias is not None else "None",
        "problem": "problem",
        "cu_seqlens_q": _starts(p.lengths_q),
        "cu_seqlens_k": _starts(p.lengths_k),
        "max_len_q": str(p.len_q),
        "max_len_k": str(p.len_k),
        **{key: repr(value) for key, value in case.variant.items()},
    }
    given = ", ".join(["q", "k", "v", *(f"{key}={text}" for key, text in offered.items() if key in asked)])
    try:
        source = Path(inspect.getsourcefile(function) or "").read_text()
    except (OSError, TypeError) as error:
        raise ValueError(
            f"target {case.target!r}: the source of {function.__qualname__} cannot be read: {error}"
        ) from None
    taken = excerpt(source, [function.__name__], typing=True)
    setup = _folder(taken, function) + _beside(taken, function.__name__)
    if "problem" in asked:
        setup += f"\n\nproblem = {_problem(p)}  # what the harness passes; its mask is `keep`"
    imports = ("import types",) if "types." in setup else ()
    call: tuple[str, ...] = (
        f"answer = kernel({given})",
        "o, lse = answer if isinstance(answer, tuple) else (answer, None)",
    )
    if "return" in taken and not _may_return_tuple(taken, function.__name__):
        call = (f"o = kernel({given})",)
    return Text(call, imports, setup, mask="mask" in asked, lse=False)


def _beside(taken: str, name: str) -> str:
    """The source and `kernel`; in a module of its own where it has names that the script has too."""
    tree = ast.parse(taken)
    if not {bound for node in tree.body for bound in binds(node)} & RESERVED and "'''" not in taken:
        return f"{taken}\n\n\nkernel = {name}"
    lines = [f"SOURCE = r'''\n{taken}\n'''", "module = types.ModuleType('source')", "module.torch = torch"]
    return "\n".join([*lines, "exec(SOURCE, module.__dict__)", f"kernel = module.{name}"])


def _may_return_tuple(source: str, name: str) -> bool:
    """True if the function may return (O, LSE): only a plain operation is certain not to."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            returns = [inner.value for inner in ast.walk(node) if isinstance(inner, ast.Return)]
            return not all(isinstance(value, ast.BinOp) for value in returns)
    return True


def _starts(lengths: tuple[int, ...]) -> str:
    return f"torch.tensor({list(cumulative(lengths))}, dtype=torch.int32, device=DEVICE)"


def _folder(source: str, function: Callable[..., Any]) -> str:
    """A path hint where the excerpt imports something that lies beside the user's file."""
    folder = Path(inspect.getsourcefile(function) or "").resolve().parent
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            top = name.split(".")[0]
            if top not in sys.stdlib_module_names and ((folder / f"{top}.py").exists() or (folder / top).is_dir()):
                return f"import sys\n\nsys.path.insert(0, {str(folder)!r})\n"
    return ""


def _problem(p: Problem) -> str:
    fields = ("lengths_q", "lengths_k", "heads_q", "heads_kv", "dim", "dim_v", "dtype", "layout", "softcap", "backward")
    more = {"batch": p.batch, "len_q": p.len_q, "len_k": p.len_k, "group": p.group, "scale_value": p.scale_value}
    told = {name: getattr(p, name) for name in fields} | more
    return f"types.SimpleNamespace({', '.join(f'{name}={value!r}' for name, value in told.items())})"
