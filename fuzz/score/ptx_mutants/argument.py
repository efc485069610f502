"""Argument: why a pattern of changes is equivalent, with the evidence that it needs and the code around it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from fuzz.score.ptx_mutants.results import PtxMutant, Result

TextOf: TypeAlias = Callable[[PtxMutant], str]  # PTX of the kernel that a mutant is of


@dataclass(frozen=True)
class Argument:
    """Applies to mutants of `operators` whose instruction matches `before` (and whose replacement matches `after`),
    with the evidence `needs`; `follows`, where it is given, matches somewhere in the rest of the kernel's text, `never`
    does not, and `near` matches within the 8 lines before and after; `least`: listed cases that come to it."""

    rule: str
    why: str
    operators: tuple[str, ...]
    before: str
    needs: str
    after: str = ""
    kinds: tuple[str, ...] = ()
    configs: str = ""
    never: str = ""
    near: str = ""
    targets: tuple[str, ...] = ("blocksparse",)
    least: int = 0

    def fits(self, result: Result, text_of: TextOf) -> bool:
        """True if it says that this mutant is equivalent."""
        bug = result.bug
        return (
            result.looked
            and result.reaching >= self.least
            and bug.target in self.targets
            and bug.operator in self.operators
            and (not self.kinds or bug.kind.partition(".")[0] in self.kinds)
            and getattr(result, self.needs) is True
            and re.search(self.configs, bug.config) is not None
            and re.match(self.before, bug.before) is not None
            and re.search(self.after, bug.after) is not None
            and (not self.never or re.search(self.never, code_after(bug, text_of), re.M) is None)
            and (not self.near or re.search(self.near, code_around(bug, text_of), re.M) is not None)
        )


def code_after(bug: PtxMutant, text_of: TextOf) -> str:
    """The kernel's text after the changed instruction."""
    return "\n".join(text_of(bug).splitlines()[bug.line - 1 + bug.span :])


def code_around(bug: PtxMutant, text_of: TextOf) -> str:
    """Eight lines before and after the beginning of the changed instruction."""
    return "\n".join(text_of(bug).splitlines()[max(0, bug.line - 9) : bug.line + 8])
