"""The part of a Python module that some of its names need, as text: what a self-contained script takes along.

Works on top-level statements: imports, functions, classes, assignments. Decorators of ours are left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

_OURS = ("fuzz", "oracles")


def excerpt(source: str, names: Iterable[str], *, typing: bool = False) -> str:
    """Source text of the top-level statements that define `names` and whatever those use, in their order.

    typing  whether annotations are kept, and what they use; else functions lose them
    Imports of the harness and `import torch` are left out.
    """
    tree = ast.parse(source)
    defined = {name: at for at, node in enumerate(tree.body) for name in binds(node)}
    wanted, todo = set(), list(names)
    while todo:
        at = defined.get(todo.pop())
        if at is None or at in wanted:
            continue
        wanted.add(at)
        todo += _uses(tree.body[at], typing)
    lines = source.splitlines()
    ours = {name for node in tree.body if _is_ours(node) for name in binds(node)}
    parts = [_text(tree.body[at], lines, ours, typing) for at in sorted(wanted)]
    return _joined([part for part in parts if part])


def binds(node: ast.stmt) -> list[str]:
    """The names that a top-level statement binds."""
    match node:
        case ast.Import(names) | ast.ImportFrom(names=names):
            return [(alias.asname or alias.name).split(".")[0] for alias in names]
        case ast.FunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Assign(targets):
            return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def _uses(node: ast.stmt, typing: bool) -> list[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return []
    skipped: set[int] = set()
    if not typing:
        for inner in ast.walk(node):
            notes = [getattr(inner, "returns", None)] if isinstance(inner, ast.FunctionDef) else []
            notes += [inner.annotation] if isinstance(inner, ast.arg | ast.AnnAssign) else []
            skipped |= {id(part) for note in notes if note is not None for part in ast.walk(note)}
    return [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and id(n) not in skipped]


def _text(node: ast.stmt, lines: list[str], ours: set[str], typing: bool) -> str:
    """The statement without decorators of ours (`ours` are the names imported from the harness)."""
    if _is_ours(node) or (isinstance(node, ast.Import) and [alias.name for alias in node.names] == ["torch"]):
        return ""
    if not isinstance(node, ast.FunctionDef):
        return "\n".join(lines[node.lineno - 1 : node.end_lineno])
    kept = [x for x in node.decorator_list if not ours & {n.id for n in ast.walk(x) if isinstance(n, ast.Name)}]
    head = [line for x in kept for line in f"@{ast.unparse(x)}".split("\n")]
    if typing:
        return "\n".join([*head, *lines[node.lineno - 1 : node.end_lineno]])
    body = lines[node.body[0].lineno - 1 : node.end_lineno]
    return "\n".join([*head, f"def {node.name}({_bare(node.args)}):", *body])


def _is_ours(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in _OURS


def _bare(arguments: ast.arguments) -> str:
    """A signature without annotations."""
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    return ast.unparse(arguments)


def _joined(parts: list[str]) -> str:
    """Blank lines around definitions, none between single lines."""
    text = ""
    for before, part in zip(["", *parts], parts, strict=False):
        tall = "\n" in before or "\n" in part
        text += ("\n\n\n" if tall else "\n") * bool(text) + part
    return text
