"""Verdict and Signature: the result of a Case. Values only; fuzz/judging makes them."""

from __future__ import annotations

import hashlib
from typing import Any, Literal, TypeAlias

import msgspec

from fuzz.core.case import Case
from oracles.finding import Finding, Location

__all__ = [
    "BAD",
    "WROTE_OUTSIDE",
    "Finding",
    "FollowUpFailure",
    "Location",
    "Outcome",
    "Signature",
    "Verdict",
    "Worst",
    "summary",
]

Outcome: TypeAlias = Literal["pass", "fail", "hang", "crash", "flake", "reject", "missing", "unexpected_pass"]
WROTE_OUTSIDE = "wrote_outside"  # kind of a finding: whatever the process says after it is not to be trusted
BAD: frozenset[str] = frozenset({"fail", "hang", "crash", "flake", "missing", "unexpected_pass"})


class Signature(msgspec.Struct, frozen=True, omit_defaults=True):
    """What makes two failures the same bug (fuzz/core/signature.py).

    kernel    kind of the kernel that went wrong, where the device knows it: 'forward', 'backward'
    line      'file.py:12' of the kernel's source, where it is known
    features  the evidence: those of the minimised case that the failure needs, or all of a case that is not minimised
    """

    target: str
    kind: str
    oracle: str
    tensors: tuple[str, ...] = ()
    place: str = ""
    features: tuple[str, ...] = ()
    kernel: str = ""
    line: str = ""

    @property
    def id(self) -> str:
        """Eight hexadecimal digits, for file names."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:8]


class Worst(msgspec.Struct, frozen=True, omit_defaults=True):
    """The worst place of one tensor: error over budget, at which grain (element, row, tile, tensor), and where."""

    tensor: str
    ratio: float
    grain: str
    batch: int
    head: int
    row: int


class FollowUpFailure(msgspec.Struct, frozen=True, omit_defaults=True):
    """A follow-up case (of a metamorphic relation) whose outputs are wrong by themselves, and what is wrong with them
    when they are judged as those of a case of its own."""

    case: Case
    findings: tuple[Finding, ...]


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of run_case.

    ratio     largest error / budget over all tensors (0 where nothing was compared)
    worst     of each tensor compared, in the order o, lse, dq, dk, dv, dbias
    seconds   by phase: inputs, reference, prepare, run, judge, overhead
    evidence  of a hang or crash: {"python_stack": …, "exit": …, "stderr": …, "gpu": …}
    kernel    what the execution proved to have run
    failed, runs   for a flake: k of n runs failed
    follow_ups     where a relation is broken: the follow-up cases that are wrong by themselves
    calls     each distinct call that the target made, as text (fuzz/core/surface.py)
    """

    case_id: str
    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    ratio: float = 0.0
    seconds: dict[str, float] = {}
    worst: tuple[Worst, ...] = ()
    evidence: dict[str, Any] = {}
    kernel: str = ""
    failed: int = 0
    runs: int = 0
    follow_ups: tuple[FollowUpFailure, ...] = ()
    calls: tuple[str, ...] = ()

    @property
    def bad(self) -> bool:
        """True if the verdict is a finding."""
        return self.outcome in BAD


def summary(verdict: Verdict) -> str:
    """One line: the outcome and its first finding."""
    rate = f" {verdict.failed}/{verdict.runs}" if verdict.outcome == "flake" else ""
    first = verdict.findings[0].message if verdict.findings else verdict.reason
    return f"{verdict.outcome}{rate}" + (f": {first}" if first else "")
