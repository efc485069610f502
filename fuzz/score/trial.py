"""One trial: a mutant, a seed, a generator; cases are run until our oracles and other projects' criteria have found it.

A finding counts where the kernel without the mutation passes the same case, for our oracles as for other projects'
criteria: what fails without it too is a false alarm, and counted as one. Other projects' criteria judge every case that
is run; once our oracles have found the mutant, cases are run once each, without repeats and relations, which only our
oracles look at.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
from msgspec.structs import replace

from fuzz.core.case import Case
from fuzz.core.features import switches
from fuzz.core.refusal import refusal
from fuzz.core.signature import root
from fuzz.core.target import Target
from fuzz.core.verdict import Verdict, summary
from fuzz.minimize import minimize
from fuzz.score.case_streams import case_stream
from fuzz.score.criteria_judge import fails_of
from fuzz.score.settings import Settings, Trial
from fuzz.score.trial_plan import good, kernels, within

OURS = "ours"  # the harness's own verdict, among the names of the rules
PHASES_BEFORE = ("prepare", "overhead")  # compiling and starting a process are not looking for a mutant


class Smallest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Size that a finding was reduced to: query and key tokens over all sequences, heads, head dim, features in use."""

    tokens: int
    heads: int
    dim: int
    features: int
    shape: str
    runs: int
    seconds: float
    case: Case


class Ended(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result of a trial.

    run       cases that were run; those of the other projects' criteria among them: at most trial.peers
    found     by rule (OURS, or another project's criterion), at which case; a rule that is missing has not found it
    seconds   until we found it, or all in vain, without compiling; compiling: seconds of that
    oracle    'oracle:kind' of the finding
    alarms    cases that failed without the mutation too: false alarms, or bugs of the kernel itself; said: their
              summaries without the mutation
    theirs    by rule: in how many of the cases it failed a kernel without the mutation, of those in which it was asked
    asked     of a rule: in how many cases it was asked, until it found the mutant
    error     why the trial could not be ended
    cut       the time was up before the mutant was found, or the cases were spent: it proves nothing about the mutant
    """

    trial: Trial
    run: int
    found: dict[str, int]
    seconds: float
    compiling: float
    outcome: str = ""
    oracle: str = ""
    message: str = ""
    case: Case | None = None
    smallest: Smallest | None = None
    alarms: tuple[Case, ...] = ()
    said: tuple[str, ...] = ()
    theirs: dict[str, int] = {}
    asked: dict[str, int] = {}
    error: str = ""
    cut: bool = False


def search(
    trial: Trial,
    target: Target,
    settings: Settings,
    run: Callable[[Case], Verdict],
    watched: Callable[[Case], Verdict],
    late: Callable[[], bool] = lambda: False,
) -> Ended:
    """Runs a trial. `run` is a Runner's; `watched` asks the other projects' criteria too (criteria_judge.py), which
    takes about twice as long; no case begins once `late` says so. Raises what they raise."""
    clean = good(target, settings.device)
    progress = _Progress(trial)
    for case in case_stream(trial, target, settings):
        if progress.done or late():
            break
        now = watched if progress.run < trial.peers else run
        verdict = now(case if progress.hit is None else replace(case, repeats=1, relations=()))
        progress.add(case, verdict, partial(_without, now, clean.name))
    smallest = None
    if trial.minimize and progress.hit is not None:
        smallest = _smallest(*progress.hit, target, clean, settings, run)
    first = root(progress.hit[1]) if progress.hit else None
    return Ended(
        trial=trial,
        run=progress.run,
        found=progress.found,
        seconds=round(progress.seconds, 3),
        compiling=round(progress.compiling, 3),
        outcome=progress.hit[1].outcome if progress.hit else "",
        oracle=f"{first.oracle}:{first.kind}" if first else progress.hit[1].outcome if progress.hit else "",
        message=summary(progress.hit[1])[:300] if progress.hit else "",
        case=progress.hit[0] if progress.hit else None,
        smallest=smallest,
        alarms=tuple(progress.alarms),
        said=tuple(progress.said),
        theirs=progress.theirs,
        asked=progress.asked,
        cut=not progress.done,
    )


def _without(run: Callable[[Case], Verdict], clean: str, case: Case, fully: bool) -> Verdict:
    """The verdict of the kernel without the mutation; but for `fully`, of one run only."""
    case = replace(case, target=clean)
    return run(case if fully else replace(case, repeats=1, relations=()))


class _Progress:
    """Counts of a trial under way."""

    def __init__(self, trial: Trial) -> None:
        from oracles.other_projects import CRITERIA

        self.trial = trial
        self.run = 0
        self.found: dict[str, int] = {}
        self.hit: tuple[Case, Verdict] | None = None
        self.alarms: list[Case] = []
        self.said: list[str] = []
        self.theirs: dict[str, int] = {}
        self.asked: dict[str, int] = {}
        self.seconds = self.compiling = 0.0
        self._rules = frozenset(CRITERIA)

    @property
    def done(self) -> bool:
        """True if every rule has found it, or its cases are spent."""
        ours = self.hit is None and self.run < self.trial.cases
        others = self.run < self.trial.peers and not self._rules <= set(self.found)
        return not (ours or others)

    def add(self, case: Case, verdict: Verdict, without: Callable[[Case, bool], Verdict]) -> None:
        """Counts a case, and who found the mutant with it; `without` runs the kernel without the mutation."""
        self.run += 1
        clean: Verdict | None = None
        if self.hit is None:
            compiling = sum(verdict.seconds.get(phase, 0.0) for phase in PHASES_BEFORE)
            self.compiling += compiling
            self.seconds += sum(verdict.seconds.values()) - compiling
            if verdict.bad:
                clean = without(case, True)
                if clean.bad:
                    self.alarms.append(case)
                    self.said.append(summary(clean)[:300])
                else:
                    self.hit = (case, verdict)
                    self.found[OURS] = self.run
        if self.run > self.trial.peers:
            return
        failed = fails_of(verdict)
        for rule in failed.keys() - self.found.keys():
            self.asked[rule] = self.run
            if failed[rule]:
                clean = clean or without(case, False)
                if fails_of(clean).get(rule):
                    self.theirs[rule] = self.theirs.get(rule, 0) + 1
                else:
                    self.found[rule] = self.run


def _smallest(
    case: Case, verdict: Verdict, target: Target, clean: Target, settings: Settings, run: Callable[[Case], Verdict]
) -> Smallest:
    allowed = kernels(clean.name, settings.device, settings.keys, settings.repeats, settings.seed)

    def taken(candidate: Case) -> bool:
        return refusal(target, candidate) is None and within(replace(candidate, target=clean.name), clean, allowed)

    found = minimize(
        case,
        run,
        verdict=verdict,
        allowed=taken,
        max_runs=settings.minimize_runs,
        max_seconds=settings.minimize_seconds,
    )
    p = found.case.problem
    return Smallest(
        tokens=sum(p.lengths_q) + sum(p.lengths_k),
        heads=p.heads_q,
        dim=p.dim,
        features=len(switches(found.case)),
        shape=f"{p.batch} × {p.heads_q}/{p.heads_kv} × {p.len_q} × {p.len_k} × {p.dim}",
        runs=found.runs,
        seconds=round(found.seconds, 1),
        case=found.case,
    )
