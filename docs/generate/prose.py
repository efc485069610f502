"""Markdown from docstrings: paragraphs stay, indented lines and tables of names become literal blocks."""

from __future__ import annotations

import inspect
import re

_COLUMNS = re.compile(r"^\S.*?\S {2,}\S|^\w {2,}\S")


def prose(docstring: str | None) -> str:
    """A docstring as Markdown. Lines that are indented, and paragraphs with columns, keep their spaces."""
    blocks: list[tuple[bool, list[str]]] = []  # literal or not, lines
    for paragraph in inspect.cleandoc(docstring or "").split("\n\n"):
        lines = paragraph.splitlines()
        columns = any(_COLUMNS.match(line) for line in lines)
        if blocks:
            blocks[-1][1].append("")
        for line in lines:
            literal = columns or line.startswith("    ")
            if not blocks or blocks[-1][0] != literal:
                blocks.append((literal, []))
            blocks[-1][1].append(line.removeprefix("    ") if literal and not columns else line)
    return "\n\n".join(_block(literal, "\n".join(lines).strip("\n")) for literal, lines in blocks).strip()


def _block(literal: bool, text: str) -> str:
    return f"```text\n{text}\n```" if literal else text


def first_paragraph(docstring: str | None) -> str:
    """First paragraph of a docstring as one line."""
    return " ".join(inspect.cleandoc(docstring or "").split("\n\n")[0].split())


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
