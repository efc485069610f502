"""Protocols of a search: a history of revisions, and an environment in which one of them runs.

checkouts.py and packages.py implement Revisions; tests give the search a history that is not real.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Result: TypeAlias = Literal["failed", "clean", "other"]  # other: fails, but not as the bug that is looked for


class BisectError(ValueError):
    """A history, a revision or a case that cannot be searched; one line."""


class Untestable(Exception):
    """A revision that cannot be built, imported or run: it is skipped, as `git bisect skip` does; one line."""


@dataclass(frozen=True)
class Revision:
    """One revision: its name (a commit's hash, or requirements of pip) and what people call it."""

    name: str
    title: str = ""

    def __str__(self) -> str:
        return f"{self.name[:12]} {self.title}".strip() if self.title else self.name


@dataclass(frozen=True)
class History:
    """The suspects, oldest first, and the revision before them.

    good       known to be good
    revisions  any of which may be the first bad one; the last is known to be bad
    bad        [f, r]: whether r is bad if f is the first bad one (posterior.linear, or from a graph of commits)
    """

    good: Revision
    revisions: tuple[Revision, ...]
    bad: NDArray[np.bool_]


@dataclass(frozen=True)
class Place:
    """Where a revision's code runs: a Python program, PYTHONPATH, a working directory, target files."""

    python: str
    paths: tuple[Path, ...]
    folder: Path
    files: tuple[str, ...]


class Revisions(Protocol):
    """A history whose revisions can be made to run."""

    def history(self) -> History:
        """The suspects. Raises BisectError."""
        ...

    def prepare(self, revision: Revision) -> AbstractContextManager[Place]:
        """The revision, ready to run until the context ends. Raises Untestable."""
        ...


class Laboratory(Protocol):
    """Runs of one case, at any revision; tests have one without processes."""

    def at(self, revision: Revision) -> AbstractContextManager[Callable[[], Result]]:
        """A function that runs the case once. It, or entering the context, raises Untestable."""
        ...
