"""Reference of the ledger: its tables and columns from the schema, the read side from its docstrings."""

from __future__ import annotations

import inspect

from sqlalchemy import Column, Table

from docs.generate.prose import cell, prose
from fuzz.ledger.query import read
from fuzz.ledger.tables import schema


def tables() -> str:
    """A section for each table, with its columns."""
    return "\n\n".join(_section(table) for table in schema.metadata.tables.values())


def reads() -> str:
    """A row for each function of the read side."""
    lines = ["| function of `fuzz.ledger.query.read` | frame |", "| --- | --- |"]
    for name, function in inspect.getmembers(read, inspect.isfunction):
        if function.__module__ == read.__name__ and not name.startswith("_"):
            lines.append(f"| `{name}` | {cell(prose(function.__doc__))} |")
    return "\n".join(lines)


def _section(table: Table) -> str:
    lines = [f"### {table.name}", "", str(table.info["meaning"]), ""]
    lines += ["| column | type | meaning |", "| --- | --- | --- |"]
    lines += [f"| `{c.name}`{_key(c)} | {_type(c)} | {cell(c.info['meaning'])} |" for c in table.columns]
    return "\n".join(lines)


def _key(column: Column) -> str:
    return " (key)" if column.primary_key else ""


def _type(column: Column) -> str:
    return str(column.type).lower() + (", null" if column.nullable else "")
