"""Argument: why a pattern of changes is equivalent, with the evidence that it needs and the code around it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

from msgspec.structs import replace

from fuzz.score.ptx_mutants.results import PtxMutant, Result
from fuzz.score.ptx_mutants.sampling import mutated

_LOC = re.compile(r"\.loc\t[^\n]*// ([\w.]+):(\d+)")
ROOT = Path(__file__).resolve().parents[3]
TextOf: TypeAlias = Callable[[PtxMutant], str]  # PTX of the kernel that a mutant is of


@dataclass(frozen=True)
class Argument:
    """Applies to mutants of `operators` whose instruction matches `before` (and whose replacement matches `after`),
    with the evidence `needs`.

    follows  matches the beginning of the rest of the kernel's text, after the instruction; never: matches nowhere in it
    lacks    matches nowhere in the whole text
    defined  matches the instruction that gives its first operand
    stored   matches the instruction that gives the value that it stores
    near     matches within the 8 lines before and after
    inside   'path.py function': the function that its source line is in; line: matches that line
    without  one that no line of the kernel is in
    least    listed cases that come to it; alone: those of them that make block lists alone
    none_in  kind of another kernel of the configuration, and a pattern that matches nowhere in its text
    proof    says yes of the kernel's text and the changed line's number
    compared says yes of the kernel's text, the changed one and the line's number
    """

    rule: str
    why: str
    operators: tuple[str, ...]
    before: str
    needs: str
    after: str = ""
    kinds: tuple[str, ...] = ()
    configs: str = ""
    follows: str = ""
    never: str = ""
    lacks: str = ""
    defined: str = ""
    stored: str = ""
    near: str = ""
    targets: tuple[str, ...] = ("blocksparse",)
    least: int = 0
    alone: int = 0
    inside: str = ""
    line: str = ""
    without: str = ""
    none_in: tuple[str, str] = ("", "")
    proof: Callable[[str, int], bool] | None = None
    compared: Callable[[str, str, int], bool] | None = None

    def fits(self, result: Result, text_of: TextOf) -> bool:
        """True if it says that this mutant is equivalent."""
        bug = result.bug
        return bool(
            result.looked
            and result.reaching >= self.least
            and result.alone >= self.alone
            and bug.target in self.targets
            and bug.operator in self.operators
            and (not self.kinds or bug.kind.partition(".")[0] in self.kinds)
            and getattr(result, self.needs) is True
            and re.search(self.configs, bug.config) is not None
            and re.match(self.before, bug.before) is not None
            and re.search(self.after, bug.after) is not None
            and (not self.follows or re.match(self.follows, code_after(bug, text_of)) is not None)
            and (not self.lacks or re.search(self.lacks, text_of(bug), re.M) is None)
            and (not self.never or re.search(self.never, code_after(bug, text_of), re.M) is None)
            and (not self.inside or source_of(bug, text_of) in lines_of(*self.inside.split()))
            and (not self.line or re.search(self.line, _line(self.inside.split()[0], source_of(bug, text_of)[1])))
            and (not self.defined or re.search(self.defined, defining(bug, text_of)) is not None)
            and (not self.stored or re.search(self.stored, storing(bug, text_of)) is not None)
            and (not self.without or not lines_of(*self.without.split()) & sources(text_of(bug)))
            and (not self.near or re.search(self.near, code_around(bug, text_of), re.M) is not None)
            and (not self.none_in[0] or re.search(self.none_in[1], other_text(bug, self.none_in[0], text_of)) is None)
            and (self.proof is None or self.proof(text_of(bug), bug.line))
            and (self.compared is None or self.compared(text_of(bug), mutated(bug, text_of(bug)), bug.line))
        )


def code_after(bug: PtxMutant, text_of: TextOf) -> str:
    """The kernel's text after the changed instruction."""
    return "\n".join(text_of(bug).splitlines()[bug.line - 1 + bug.span :])


def other_text(bug: PtxMutant, kind: str, text_of: TextOf) -> str:
    """The text of another kernel of a mutant's configuration."""
    return text_of(replace(bug, kind=kind))


def code_around(bug: PtxMutant, text_of: TextOf) -> str:
    """Eight lines before and after the beginning of the changed instruction."""
    return "\n".join(text_of(bug).splitlines()[max(0, bug.line - 9) : bug.line + 8])


def defining(bug: PtxMutant, text_of: TextOf) -> str:
    """The line that gives the changed instruction's first operand its value; "" where it is no register, or none is
    before it."""
    operand = re.match(r"\S+ [^,]+, (%\w+)", bug.before)
    return _defining(bug, operand.group(1) if operand else "", text_of)


def storing(bug: PtxMutant, text_of: TextOf) -> str:
    """The line that gives the value that the changed instruction stores; "" where it stores none, or several."""
    stored = re.match(r"@!?%p\d+ st\.\S+ \[[^]]*\], \{? ?(%\w+) ?\}?;", bug.before)
    return _defining(bug, stored.group(1) if stored else "", text_of)


def _defining(bug: PtxMutant, register: str, text_of: TextOf) -> str:
    lines = text_of(bug).splitlines()[: bug.line - 1]
    given = re.compile(rf"\s*\S+\s+{re.escape(register)}," if register else r"$.")
    return next((line for line in reversed(lines) if given.match(line)), "")


def source_of(bug: PtxMutant, text_of: TextOf) -> tuple[str, int]:
    """Name of the source file, and the line, that a Triton kernel's PTX gives for the changed instruction."""
    before = "\n".join(text_of(bug).splitlines()[: bug.line - 1])
    named = _LOC.findall(before)
    return (named[-1][0], int(named[-1][1])) if named else ("", 0)


def _line(path: str, number: int) -> str:
    """A line of a file of this repository; "" where it has none of that number."""
    return dict(enumerate((ROOT / path).read_text().splitlines(), 1)).get(number, "")


def sources(text: str) -> set[tuple[str, int]]:
    """Names of source files, and lines, that a kernel's PTX gives."""
    return {(name, int(line)) for name, line in _LOC.findall(text)}


@cache
def lines_of(path: str, function: str) -> frozenset[tuple[str, int]]:
    """Name of the file and number of each line of a function, of a file of this repository."""
    tree = ast.parse((ROOT / path).read_text())
    found = next(x for x in tree.body if isinstance(x, ast.FunctionDef) and x.name == function)
    return frozenset((Path(path).name, line) for line in range(found.lineno, (found.end_lineno or found.lineno) + 1))
