"""Health check: cases whose answers are known, run on a worker's device between the cases of the session.

Verdicts that a device has given since its last right answer are not to be trusted once it gives a wrong one, so records
wait in the outbox until a check has passed. A check runs after each hang and each crash, when a record has waited for
EVERY seconds, and at the end of each shard.
"""

from __future__ import annotations

from collections.abc import Callable

from fuzz.core.case import Case, Inputs
from fuzz.core.verdict import Verdict, summary
from fuzz.fleet.outbox import Outbox
from fuzz.runner import RunnerError
from oracles.masks import Causal
from oracles.problem import Problem

EVERY = 10.0  # seconds
TARGET = "torch.sdpa.math"  # PyTorch's own operations, without a fused kernel


class Unfit(Exception):
    """A device that gives no answer, or a wrong one; one line."""


class Health:
    """A worker's health check, a session.worker.Check. target: '' for none, then records wait EVERY seconds all the
    same."""

    def __init__(self, target: str, outbox: Outbox, device: str, every: float = EVERY) -> None:
        self._cases = cases(target, device) if target else ()
        self._outbox, self._every = outbox, every

    @property
    def due(self) -> bool:
        """True if no further case is to run before a check."""
        return self._outbox.held_for() > self._every or self._outbox.lost_a_child

    def look(self, run: Callable[[Case], Verdict]) -> None:
        """Runs the cases, and releases the records where all are right. Raises Unfit."""
        for case in self._cases:
            try:
                verdict = run(case)
            except RunnerError as error:
                raise Unfit(f"no answer to the health check: {str(error).strip().splitlines()[0]}") from error
            if verdict.outcome != "pass":
                raise Unfit(f"a wrong answer to the health check: {summary(verdict)}")
        self._outbox.release()


def cases(target: str, device: str) -> tuple[Case, ...]:
    """A case whose right answers are exact, and one with random numbers, forward and backward, run three times each.
    Large enough for every SM of a GPU."""
    heads, length = (12, 1024) if device == "cuda" else (2, 65)
    exact = Problem((length,), (length,), heads, heads, 64, 64, "float32", mask=Causal())
    usual = Problem((length,), (length,), heads, heads, 64, 64, "bfloat16", mask=Causal())
    return Case(target, exact, Inputs(distribution="one_hot")), Case(target, usual, Inputs(seed=1))
