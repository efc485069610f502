"""Kinds of passes.

A pass is a plain function. One that yields Options is started again from every accepted candidate, until it has none
that is accepted; one that yields Attempts gets the result of each (`accepted = yield candidate`) and goes on by itself.
A candidate may be None (nothing to try) or equal to the case. Passes know nothing of probes, budgets or kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any, NamedTuple, TypeAlias

from fuzz.core.case import Case

Options: TypeAlias = Iterable[Case | None]
Attempts: TypeAlias = Generator[Case | None, bool, Any]
Pass: TypeAlias = Callable[[Case], Options] | Callable[[Case], Attempts]


class Row(NamedTuple):
    """One row of the table of passes. `recompiles` says that a candidate usually needs another compiled kernel."""

    name: str
    run: Pass
    recompiles: bool = False
    gets_results: bool = False  # the pass yields Attempts
