"""Signatures as the site shows them: life, rate, where they were met, the revisions between which they appeared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import msgspec

from fuzz.core.case import Case
from fuzz.core.signature import needs
from fuzz.core.verdict import Verdict
from fuzz.dashboard.collect.when import iso
from fuzz.dashboard.model import Bisected, Met, Range, SignatureItem, Step
from fuzz.ledger import life
from fuzz.ledger.query import read
from fuzz.ledger.query.signatures import Known
from fuzz.ledger.tables.database import Ledger
from fuzz.session.summary.findings import what

if TYPE_CHECKING:
    import pandas as pd

LAST_NIGHTS = 30  # of the small picture of a signature's nights
MOST_STEPS, MOST_MET = 16, 10
MOST_FINDINGS, MOST_TEXT = 6, 6000  # of a verdict; letters of a piece of evidence
_DAY = 86400.0


def bugs(
    ledger: Ledger, known: Sequence[Known], sessions: pd.DataFrame, tallies: pd.DataFrame, now: float
) -> tuple[SignatureItem, ...]:
    """Every signature, in the order of `known`. sessions, tallies: as fuzz.ledger.query.read gives them."""
    findings = read.findings(ledger)
    bisections = read.bisections(ledger).to_dict("records")  # the newest stands last
    searched = {str(row["signature"]): row for row in bisections}
    met_in = {str(uid): rows for uid, rows in findings.groupby("signature")}
    ran = tallies[tallies["outcome"] != "reject"].groupby(["session", "target"], sort=False)["cases"].sum()
    by_target = {str(target): rows for target, rows in ran.reset_index().groupby("target")}
    about = sessions.set_index("session")
    nights = list(dict.fromkeys(sessions["night"]))[-LAST_NIGHTS:]
    items = (_item(one, met_in[one.uid], by_target.get(one.signature.target), about, nights, now) for one in known)
    return tuple(msgspec.structs.replace(one, bisected=_bisected(searched.get(one.uid))) for one in items)


def _item(
    known: Known, met: pd.DataFrame, ran: pd.DataFrame | None, about: pd.DataFrame, nights: Sequence[str], now: float
) -> SignatureItem:
    now_, best, sign = known.life, known.best, known.signature
    low, high = now_.rate.interval
    of_sessions = {} if ran is None else dict(zip(ran["session"], ran["cases"], strict=True))
    return SignatureItem(
        uid=known.uid,
        title=what(sign),
        message=best.message,
        target=sign.target,
        kind=sign.kind,
        oracle=sign.oracle,
        tensors=sign.tensors,
        state=now_.state,
        since=iso(now_.since),
        first=iso(now_.first),
        last=iso(now_.last),
        age=round(max(now - now_.first, 0.0) / _DAY, 2),
        failed=now_.rate.failed,
        runs=now_.rate.runs,
        low=round(low, 4),
        high=round(high, 4),
        flaky=now_.flaky,
        archs=tuple(arch or "unknown" for arch in now_.archs),
        passes=now_.passes,
        passes_needed=now_.passes_needed,
        sessions=known.sessions,
        met=known.met,
        needs=tuple(sorted(needs(sign))) if best.minimal else (),
        minimal=best.minimal,
        link=now_.link,
        until=now_.until,
        note=best.note,
        outcome=best.outcome,
        commit=best.commit,
        device=str(about.at[best.session, "device"]),
        signature=msgspec.to_builtins(sign),
        case=_plain(best.case),
        after=tuple(msgspec.to_builtins(case) for case in best.after),
        nights=_by_night(met, of_sessions, about, nights),
        appeared=_appeared(met, of_sessions, about),
        history=_steps(known),
        met_in=tuple(_met(row, about) for row in met.iloc[::-1][:MOST_MET].to_dict("records")),
        evidence=None if best.evidence is None else _bounded(best.evidence),
    )


def _bisected(row: Mapping[Any, Any] | None) -> Bisected | None:
    if row is None:
        return None
    return Bisected(
        at=iso(row["at"]),
        history=row["history"],
        good=row["good"],
        bad=row["bad"],
        suspects=int(row["suspects"]),
        first=tuple((name, title) for name, title in row["first"]),
        probability=round(float(row["probability"]), 4),
        confident=bool(row["confident"]),
    )


def _plain(case: Case | None) -> dict[str, Any] | None:
    return None if case is None else msgspec.to_builtins(case)


def _met(row: Mapping[Any, Any], about: pd.DataFrame) -> Met:
    return Met(
        night=row["night"],
        session=row["session"],
        arch=row["arch"] or "",
        commit=str(about.at[row["session"], "commit"]),
        met=int(row["met"]),
        cases=int(row["cases"]),
        failed=int(row["failed"]),
        probed=int(row["probed"]),
        status=row["status"],
    )


def _by_night(
    met: pd.DataFrame, ran: Mapping[str, int], about: pd.DataFrame, nights: Sequence[str]
) -> tuple[tuple[str, float], ...]:
    """Share of the target's cases that failed with it, of the nights in which the target ran."""
    cases: dict[str, int] = {}
    for session, count in ran.items():
        night = str(about.at[session, "night"])
        cases[night] = cases.get(night, 0) + int(count)
    failed = met.groupby("night")["met"].sum().to_dict()
    return tuple((night, round(int(failed.get(night, 0)) / cases[night], 4)) for night in nights if cases.get(night))


def _appeared(met: pd.DataFrame, ran: Mapping[str, int], about: pd.DataFrame) -> Range | None:
    """The session that met it first, and the last one before that which ran its target and did not."""
    first = met.sort_values("began").iloc[0]
    mine = about.loc[[session for session in ran if session in about.index]]
    before = mine[mine["began"] < first["began"]].sort_values("began")
    bad = about.loc[first["session"]]
    if not len(before):
        return Range("", str(bad["commit"]), "", str(bad["night"]))
    good = before.iloc[-1]
    return Range(str(good["commit"]), str(bad["commit"]), str(good["night"]), str(bad["night"]))


def _bounded(verdict: Verdict) -> dict[str, Any]:
    """A verdict without what a reader of a bug does not need, and with the beginning of long texts."""
    kept = msgspec.structs.replace(
        verdict,
        findings=verdict.findings[:MOST_FINDINGS],
        follow_ups=(),
        calls=(),
        seconds={},
        evidence={name: _cut(value) for name, value in verdict.evidence.items()},
    )
    return msgspec.to_builtins(kept)


def _cut(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False, default=str)
    return text if len(text) <= MOST_TEXT else text[:MOST_TEXT] + "\n…"


def _steps(known: Known) -> tuple[Step, ...]:
    """Its history in words, the newest first; steps in a row that say the same are one, of the last of them."""
    found = [(step.at, _words(step)) for step in known.history]
    found += [(at, f"fixed: passed {known.life.passes_needed} times in a row or more") for at in known.life.fixes]
    found.sort(key=lambda one: one[0])
    steps = []
    for words, same in groupby(found, key=lambda one: one[1]):
        times = [at for at, _ in same]
        again = f", and {len(times) - 1} times before that since {iso(times[0])[:10]}" if len(times) > 1 else ""
        steps.append(Step(iso(times[-1]), words + again))
    return tuple(steps[::-1][:MOST_STEPS])


def _words(step: life.Step) -> str:
    match step:
        case life.Seen():
            rate = f"failed in {step.failed} of {step.runs} run{'s' * (step.runs > 1)} of the saved case"
            return f"met on {step.arch or 'an unknown arch'}; {rate}" + "; explained by the corpus" * step.known
        case life.Replayed():
            if not step.failed:
                return f"replayed on {step.arch}: passed {step.runs} times in a row"
            return f"replayed on {step.arch}: failed in {step.failed} of {step.runs} runs"
        case life.Expected():
            where = f" on {', '.join(step.archs)}" if step.archs else ""
            return f"said to be expected{where}{f' until {step.until}' if step.until else ''}: {step.link}"
        case life.Unexpected():
            return "said to be expected no longer"
