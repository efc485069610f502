"""Confirming a failure: it is run again in a fresh process, then after the cases that its process had run before it.

A failure that shows again in a process that has run nothing is the kernel's own. One that shows only after other cases
is a state that a call leaves behind, and those cases are part of what reproduces it. What shows neither way is not
known to be the kernel's: it may be a rare race, or a process that somebody suspended or killed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fuzz.core.case import Case
from fuzz.core.verdict import Verdict

RUNS = 4  # in fresh processes, at most
RUNS_FLAKY = 12  # of a failure that did not show in every repeat when it was met
RUNS_LOST = 2  # of a hang, which costs its deadline each time; and of a crash
SEQUENCES = 30  # runs of several cases in one process, at most


@dataclass(frozen=True)
class Confirmation:
    """Result of confirming a failure.

    verdict  a failure that was seen in a fresh process; None: none was
    failed, probed  of the runs of the case alone in fresh processes
    after    the cases that have to be run before it in the same process; (): none
    """

    verdict: Verdict | None
    failed: int
    probed: int
    after: tuple[Case, ...] = ()


def runs_for(verdict: Verdict) -> int:
    """Runs in fresh processes, at most, until a failure counts as one that does not show again."""
    if verdict.outcome in ("hang", "crash"):
        return RUNS_LOST
    return RUNS_FLAKY if verdict.outcome == "flake" else RUNS


def confirm(
    case: Case,
    verdict: Verdict,
    before: Sequence[Case],
    run: Callable[[Case], Verdict],
    fresh: Callable[[], None],
    late: Callable[[], bool] = lambda: False,
) -> Confirmation:
    """Runs a failed case again in fresh processes, until it fails; then after `before`.

    verdict  of the case when it was met
    before   cases that its process had run before it, the last ones
    run      gives the verdict of a case in the process at hand; fresh: makes that a new one
    late     True: no further run begins
    """
    probed = 0
    while probed < runs_for(verdict) and not late():
        fresh()
        found = run(case)
        probed += 1
        if found.bad:
            return Confirmation(found, 1, probed)
    left = SEQUENCES

    def fails_after(cases: Sequence[Case]) -> Verdict | None:
        nonlocal left
        left -= 1
        fresh()
        for one in cases:
            run(one)
        found = run(case)
        return found if found.bad else None

    if not before or late() or verdict.outcome == "hang":
        return Confirmation(None, 0, probed)
    found_after = fails_after(before)
    if found_after is None:
        return Confirmation(None, 0, probed)
    needed, kept = _fewest(tuple(before), fails_after, lambda: left > 0 and not late())
    return Confirmation(kept or found_after, 0, probed, needed)


def _fewest(
    cases: tuple[Case, ...], fails_after: Callable[[Sequence[Case]], Verdict | None], more: Callable[[], bool]
) -> tuple[tuple[Case, ...], Verdict | None]:
    """The fewest of `cases` found after which the failure shows, in their order, and its last verdict: halves are left
    out while one can be, then quarters, and so on to single cases."""
    verdict: Verdict | None = None
    size = max(len(cases) // 2, 1)
    while size and len(cases) > 1:
        at, shorter = 0, False
        while at < len(cases) and len(cases) > 1:
            if not more():
                return cases, verdict
            rest = cases[:at] + cases[at + size :]
            found = fails_after(rest) if rest else None
            if found is not None:
                cases, verdict, shorter = rest, found, True
            else:
                at += size
        size = size if shorter and size == 1 else size // 2
    return cases, verdict
