"""Running a signature's saved case again: what closes it, or keeps it open."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

from fuzz.core.case import Case
from fuzz.core.verdict import Verdict
from fuzz.ledger.query.signatures import Known
from fuzz.ledger.rate import MOST_PASSES, PASSES
from fuzz.ledger.tables.rows import ReplayRow

_COSTLY = ("hang", "crash")


def runs_to_do(known: Known, arch: str) -> int:
    """Runs after which it is fixed on an arch if all of them pass; at least PASSES."""
    life = known.life
    return min(max(life.passes_needed - life.passes.get(arch, 0), PASSES), MOST_PASSES)


def replay(known: Known, run: Callable[[Case], Verdict], arch: str, runs: int, **where: Any) -> ReplayRow | None:
    """Runs the saved case `runs` times, each after the cases that it needs before it; whatever is wrong is a failure.

    A hang or a crash ends it: each costs its deadline, or a process. None where the target refuses the case, or the
    ledger has none. where: hardware, toolchain and revision of the row
    """
    found = known.best
    if found.case is None:
        return None
    failed = done = 0
    while done < runs:
        for case in found.after:
            run(case)
        verdict = run(found.case)
        if verdict.outcome == "reject":
            return None
        done, failed = done + 1, failed + verdict.bad
        if verdict.outcome in _COSTLY:
            break
    return ReplayRow(uuid.uuid4().hex, known.uid, time.time(), arch, failed, done, **where)
