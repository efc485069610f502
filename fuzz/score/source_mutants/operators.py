"""Mutation operators: small changes of one line of Python that a kernel's author could have made.

An operator is a function from a node of the syntax tree to the texts that may stand in the place of a part of it. What
only refuses a call or describes it is left alone: annotations, decorators, docstrings, raise and assert, imports.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from fuzz.score.source_mutants.results import SourceMutant


@dataclass(frozen=True)
class Edit:
    """Part of one line, by columns in bytes as `ast` counts them, and its new text."""

    line: int
    start: int
    stop: int
    after: str


Operator: TypeAlias = Callable[[ast.AST, str], Iterator[Edit]]  # from a node, and the whole source
_COMPARED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
_COMPUTED = {"+": "-", "-": "+", "*": "+", "//": "%", "%": "//", "<<": ">>", ">>": "<<", "&": "|", "|": "&"}
_OTHER = {"min": "max", "max": "min", "fmax": "fmin", "floor": "ceil", "ceil": "floor", "any": "all", "all": "any"}
_CONFUSED = (("q", "k"), ("k", "v"), ("dk", "dv"), ("m", "n"), ("row", "col"), ("rows", "cols"), ("first", "last"))
_LEFT_ALONE = (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom, ast.JoinedStr, ast.arg, ast.AnnAssign)


def comparison(node: ast.AST, source: str) -> Iterator[Edit]:
    """< for <=, == for !=, and so on."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from _between(node.left, node.comparators[0], source, _COMPARED)


def arithmetic(node: ast.AST, source: str) -> Iterator[Edit]:
    """+ for -, * for +, // for %, and so on."""
    if isinstance(node, ast.BinOp):
        yield from _between(node.left, node.right, source, _COMPUTED)
    elif isinstance(node, ast.AugAssign):
        yield from _between(node.target, node.value, source, {f"{a}=": f"{b}=" for a, b in _COMPUTED.items()})


def number(node: ast.AST, source: str) -> Iterator[Edit]:
    """An integer that is one larger, or one smaller."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield from _replaced(node, str(node.value + 1))
        if node.value > 0:
            yield from _replaced(node, str(node.value - 1))


def logic(node: ast.AST, source: str) -> Iterator[Edit]:
    """`and` for `or`, and without `not`."""
    if isinstance(node, ast.BoolOp) and len(node.values) == 2:
        yield from _between(node.values[0], node.values[1], source, {"and": "or", "or": "and"})
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield from _replaced(node, ast.get_source_segment(source, node.operand) or "")


def condition(node: ast.AST, source: str) -> Iterator[Edit]:
    """The opposite of a condition."""
    if isinstance(node, ast.If | ast.IfExp | ast.While) and not isinstance(node.test, ast.UnaryOp):
        yield from _replaced(node.test, f"not ({ast.get_source_segment(source, node.test)})")


def switch(node: ast.AST, source: str) -> Iterator[Edit]:
    """True for False."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield from _replaced(node, str(not node.value))


def function(node: ast.AST, source: str) -> Iterator[Edit]:
    """min for max, and so on; a division rounded down that is to be rounded up."""
    if not isinstance(node, ast.Call):
        return
    called = node.func
    name = called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
    if name in _OTHER and called.end_col_offset is not None:
        yield Edit(called.end_lineno or 0, called.end_col_offset - len(name), called.end_col_offset, _OTHER[name])
    if name == "ceil_div" and len(node.args) == 2:
        upper, lower = (ast.get_source_segment(source, x) for x in node.args)
        yield from _replaced(node, f"(({upper}) // ({lower}))")


def arguments(node: ast.AST, source: str) -> Iterator[Edit]:
    """Two neighbours among a call's arguments, exchanged."""
    if not isinstance(node, ast.Call):
        return
    for x, y in zip(node.args, node.args[1:], strict=False):
        if isinstance(x, ast.Name | ast.Attribute) and isinstance(y, ast.Name | ast.Attribute) and _one_line(x, y):
            texts = ast.get_source_segment(source, x), ast.get_source_segment(source, y)
            yield Edit(x.lineno, x.col_offset, y.end_col_offset or 0, f"{texts[1]}, {texts[0]}")


def name(node: ast.AST, source: str) -> Iterator[Edit]:
    """A name for the one that it is easily confused with: k for q, m for n."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        found, start = node.id, node.col_offset
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.end_lineno == node.lineno:
        found, start = node.attr, (node.end_col_offset or 0) - len(node.attr)
    else:
        return
    words = found.split("_")
    for pair in _CONFUSED:
        for one, other in (pair, pair[::-1]):
            if one in words:
                after = "_".join(other if word == one else word for word in words)
                yield Edit(node.lineno, start, start + len(found), after)


def statement(node: ast.AST, source: str) -> Iterator[Edit]:
    """A call or a sum that is left out."""
    if isinstance(node, ast.AugAssign) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield from _replaced(node, "pass")


OPERATORS: dict[str, Operator] = {
    operator.__name__: operator
    for operator in (
        comparison, arithmetic, number, logic, condition, switch, function, arguments, name, statement,
    )
}  # fmt: skip


def mutants(source: str, file: str) -> Iterator[SourceMutant]:
    """All mutants of a file."""
    lines, tree = source.splitlines(), ast.parse(source)
    known = {getattr(node, field, "") for node in ast.walk(tree) for field in ("id", "attr", "arg")}
    for node, inside in _nodes(tree):
        for title, operator in OPERATORS.items():
            for edit in operator(node, source):
                if title == "name" and edit.after not in known:  # found at once, whatever is asked
                    continue
                line = lines[edit.line - 1]
                start, stop = (len(line.encode()[:at].decode()) for at in (edit.start, edit.stop))
                if line[start:stop] != edit.after:
                    where = inside.lineno, inside.end_lineno or inside.lineno, inside.col_offset
                    yield SourceMutant(file, title, edit.line, start, stop, line.strip(), edit.after, where)


def mutated(source: str, mutant: SourceMutant) -> str:
    """The file's text with the mutant's change."""
    lines = source.splitlines(keepends=True)
    line = lines[mutant.line - 1]
    lines[mutant.line - 1] = line[: mutant.start] + mutant.after + line[mutant.stop :]
    return "".join(lines)


def probed(source: str, mutant: SourceMutant) -> str:
    """The file's text where the statement with the change raises a NameError: a session that does not fail on it never
    comes there."""
    first, _, column = mutant.statement
    lines = source.splitlines(keepends=True)
    lines.insert(first - 1, " " * column + f"source_mutant_{mutant.id}_is_reached\n")
    return "".join(lines)


def _nodes(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.stmt]]:
    """Nodes inside functions that may be changed, each with the statement that it is in."""
    for top in tree.body:
        members: list[ast.stmt] = top.body if isinstance(top, ast.ClassDef) else [top]
        for member in members:
            if isinstance(member, ast.FunctionDef):
                yield from _of_statement(member, member)


def _of_statement(stmt: ast.stmt, where: ast.stmt) -> Iterator[tuple[ast.AST, ast.stmt]]:
    """Nodes of a statement, itself among them. where: the statement before which another one can stand; of an elif its
    if's."""
    if isinstance(stmt, _LEFT_ALONE):
        return
    if isinstance(stmt, ast.FunctionDef):
        for inner in stmt.body:
            yield from _of_statement(inner, inner)
        return
    refuses = isinstance(stmt, ast.If) and all(isinstance(x, ast.Raise) for x in stmt.body)
    if not refuses:
        yield stmt, where
    for child in ast.iter_child_nodes(stmt):
        if isinstance(child, ast.stmt):
            chained = isinstance(stmt, ast.If) and isinstance(child, ast.If) and child.col_offset == stmt.col_offset
            yield from _of_statement(child, where if chained else child)
        elif not (refuses and isinstance(stmt, ast.If) and child is stmt.test):
            yield from _of_expression(child, where)


def _of_expression(node: ast.AST, where: ast.stmt) -> Iterator[tuple[ast.AST, ast.stmt]]:
    if not isinstance(node, _LEFT_ALONE):
        yield node, where
        for child in ast.iter_child_nodes(node):
            yield from _of_expression(child, where)


def _between(left: ast.expr, right: ast.expr, source: str, others: dict[str, str]) -> Iterator[Edit]:
    """The operator that stands between two operands of one line."""
    if not _one_line(left, right):
        return
    line = source.splitlines()[left.lineno - 1].encode()
    start, stop = left.end_col_offset or 0, right.col_offset
    between = line[start:stop].decode()
    found = between.strip(" ()")
    if found in others:
        at = start + len(between[: between.index(found)].encode())
        yield Edit(left.lineno, at, at + len(found), others[found])


def _replaced(node: ast.expr | ast.stmt, after: str) -> Iterator[Edit]:
    if node.lineno == node.end_lineno and after and "\n" not in after:
        yield Edit(node.lineno, node.col_offset, node.end_col_offset or 0, after)


def _one_line(left: ast.expr, right: ast.expr) -> bool:
    return left.lineno == right.end_lineno
