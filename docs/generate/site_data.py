"""Reference of the dashboard's data, from the structs of fuzz/dashboard/model.py."""

from __future__ import annotations

import inspect

import msgspec

from docs.generate.prose import cell, prose
from fuzz.dashboard import model


def structs() -> str:
    """A section for each struct: its docstring, its fields with their types."""
    found = [value for value in vars(model).values() if inspect.isclass(value) and value.__module__ == model.__name__]
    return "\n\n".join(_section(struct) for struct in found)


def _section(struct: type[msgspec.Struct]) -> str:
    lines = [f"## {struct.__name__}", "", prose(struct.__doc__), "", "| field | type |", "| --- | --- |"]
    lines += [f"| `{name}` | {cell(kind)} |" for name, kind in struct.__annotations__.items()]
    return "\n".join(lines)
