"""Functions of a PTX text (`.func`), and calls of them, as text: the reader in `ptx.py` puts a function's statements in
the place of each call.

Compilers write functions for what they do not inline themselves: `__noinline__` ones, slow paths of libdevice. Their
parameters and results become local memory of the caller, which is what `.param` space of a call is on a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

Statement = tuple[int, str]  # its line and text


@dataclass(frozen=True)
class Function:
    """A `.func` with a body. results, params: names, in the order of the declaration; body: the statements between its
    braces."""

    name: str
    results: tuple[str, ...]
    params: tuple[str, ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Call:
    """A `call` statement: what is called, by name, and the caller's names for results and arguments. callee is '' for
    a call through a register."""

    callee: str
    results: tuple[str, ...]
    arguments: tuple[str, ...]


_HEADER = re.compile(
    r"(?:\.visible|\.weak|\.extern)?\s*\.func\s*(?:\.attribute\([^)]*\)\s*)?(\([^)]*\))?\s*([\w$]+)\s*(\(.*\))?", re.S
)
_CALL = re.compile(r"call(?:\.uni)?\s+(?:(\([^()]*\))\s*,\s*)?([\w$%]+)\s*(?:,\s*(\([^()]*\)))?\s*(,.*)?")


def functions(statements: Sequence[Statement]) -> dict[str, Function]:
    """The functions that a PTX text has bodies of, by name."""
    found = {}
    for at, (_, text) in enumerate(statements):
        header = _HEADER.match(text) if text.endswith("{") else None
        if header is not None:
            body = tuple(statements[at + 1 : _end(statements, at + 1)])
            found[header[2]] = Function(header[2], _names(header[1]), _names(header[3]), body)
    return found


def call(text: str) -> Call | None:
    """The parts of a call; None for text that is none."""
    match = _CALL.fullmatch(text)
    if match is None:
        return None
    results, callee, arguments, prototype = match.groups()
    indirect = callee.startswith("%") or prototype
    return Call("" if indirect else callee, _names(results), _names(arguments))


def _end(statements: Sequence[Statement], at: int) -> int:
    """The index of the brace that closes the scope that `at` is in."""
    depth = 1
    while True:
        text = statements[at][1]
        depth += text.endswith("{") - (text == "}")
        if depth == 0:
            return at
        at += 1


def _names(declarations: str | None) -> tuple[str, ...]:
    """The names in '(.param .b32 x, .param .align 8 .b8 y[16])' or '(x, y)'."""
    parts = (declarations or "()").strip()[1:-1].split(",")
    return tuple(re.sub(r"\[.*", "", part).split()[-1] for part in parts if part.strip())
