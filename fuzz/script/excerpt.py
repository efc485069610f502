"""The part of a Python module that some of its names need, as text: what a self-contained script takes along.

Works on top-level statements: imports, functions, classes, assignments. Decorators of the functions asked for are left out.
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
    defined = {name: at for at, node in enumerate(tree.body) for name in _binds(node)}
    asked, wanted, todo = set(names), set(), list(names)
    while todo:
        at = defined.get(todo.pop())
        if at is None or at in wanted:
            continue
        wanted.add(at)
        todo += _uses(tree.body[at], typing)
    lines = source.splitlines()
    parts = [_text(tree.body[at], lines, asked, typing) for at in sorted(wanted)]
    return _joined([part for part in parts if part])


def _binds(node: ast.stmt) -> list[str]:
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


def _text(node: ast.stmt, lines: list[str], asked: set[str], typing: bool) -> str:
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in _OURS:
        return ""
    if isinstance(node, ast.Import) and [alias.name for alias in node.names] == ["torch"]:
        return ""
    first = node.lineno
    if isinstance(node, ast.FunctionDef):
        if node.decorator_list and node.name not in asked:
            first = min(decorator.lineno for decorator in node.decorator_list)
        if not typing:
            body = lines[node.body[0].lineno - 1 : node.end_lineno]
            return "\n".join([f"def {node.name}({_bare(node.args)}):", *body])
    return "\n".join(lines[first - 1 : node.end_lineno])


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
