"""Result of a reduction: the smallest case found, how it was found, and its signature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from fuzz.core.case import Case
from fuzz.core.features import MASK_KINDS, MASKED, facts, sees_nothing, switches
from fuzz.core.signature import Signature, root, signature
from fuzz.core.verdict import Verdict
from fuzz.minimize.rate import FLOOR, wilson

Stopped: TypeAlias = Literal["done", "runs", "seconds", "interrupted", "unreproducible", "passes"]
QUERIES = frozenset({"o", "lse", "dq"})  # tensors with a row for each query


@dataclass(frozen=True)
class Step:
    """An accepted candidate: which pass proposed it, and the runs and seconds spent until then."""

    name: str
    case: Case
    runs: int
    seconds: float

    def __str__(self) -> str:
        p = self.case.problem
        shape = f"{p.batch} × {p.heads_q}/{p.heads_kv} heads × {p.len_q} × {p.len_k} × {p.dim}"
        return f"run {self.runs}, {self.seconds:.1f} s: {self.name}: {shape}, {len(switches(self.case))} features"


@dataclass(frozen=True)
class Minimized:
    """The smallest case found. It failed in `failed` of its `probed` probes; `interval` is Wilson's, 95 %.

    steps    the accepted candidates, first to last
    needs    the features that the failure needs: the case's switches, less a dtype that another may stand in for
    others   failures of other kinds that were met on the way, one case each
    stopped  why the search ended: 'done' means that no pass has anything smaller that fails
    """

    case: Case
    verdict: Verdict
    runs: int
    seconds: float
    steps: tuple[Step, ...]
    failed: int
    probed: int
    needs: frozenset[str]
    others: tuple[tuple[Case, Verdict], ...]
    stopped: Stopped

    @property
    def flaky(self) -> bool:
        """True if the failure does not show every time, between probes or between the repeats of one."""
        return self.failed < self.probed or self.verdict.outcome == "flake"

    @property
    def interval(self) -> tuple[float, float]:
        """Interval of the rate of failing probes, with 95 % confidence."""
        return wilson(self.failed, self.probed)

    @property
    def signature(self) -> Signature:
        """The signature of the minimised failure, with the features that it needs. Rows without keys stand for the mask
        that left them so: for a NaN, which an empty softmax makes, and where a wrong number stands in such a row."""
        first, empty = root(self.verdict), facts(self.case)
        if first is None or not (first.kind == "nan" or _in_a_row_without_keys(self.case, self.verdict)):
            empty = frozenset()
        needs = (self.needs - MASK_KINDS - {MASKED}) | empty if empty else self.needs
        return signature(self.case, self.verdict, needs)

    def report(self) -> str:
        """One line for users: how it ended, what it cost, how often the result fails."""
        low, high = self.interval
        rate = f"fails in {self.failed} of {self.probed} probes" if self.flaky else "fails every time"
        sure = f" ({low:.0%}–{high:.0%})" if self.flaky else f" ({self.probed} of {self.probed})"
        return f"{len(self.steps)} steps in {self.runs} runs, {self.seconds:.1f} s; {rate}{sure}; {_ENDS[self.stopped]}"


def _in_a_row_without_keys(case: Case, verdict: Verdict) -> bool:
    """True if the worst place of the first tensor of the failure is in a row of queries that see no key."""
    first = root(verdict)
    worst = next((w for w in verdict.worst if first is not None and w.tensor == first.tensor), None)
    return worst is not None and worst.tensor in QUERIES and sees_nothing(case, worst.batch, worst.head, worst.row)


_ENDS: dict[Stopped, str] = {
    "done": "nothing smaller fails",
    "runs": "ended by the limit of runs",
    "seconds": "ended by the limit of seconds",
    "interrupted": "interrupted",
    "unreproducible": f"given up: it shows in fewer than {FLOOR:.0%} of the probes",
    "passes": "it does not fail",
}
