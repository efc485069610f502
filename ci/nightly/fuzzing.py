"""Sessions on each device until the budget is spent; one that was cut off is resumed, and counts nothing twice."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from ci.nightly.budget import Budget, Round
from ci.nightly.commands import run
from ci.nightly.options import Options, attnfuzz, target_files
from ci.nightly.state import Done, Night

STAGE = "fuzz"
BROKE = 3


def fuzz(night: Night, options: Options) -> Done:
    """All rounds of a night."""
    budget = Budget(options.devices, options.cases, 60 * options.minutes)
    pairs: dict[str, set[tuple[str, str]]] = {}
    rounds = [msgspec.convert(one, Round) for one in night.parts(STAGE)]
    for before in rounds:
        pairs.setdefault(before.device, set()).update(_pairs(Path(before.folder)))
    while (device := budget.next(rounds)) is not None:
        cases, seconds = budget.left(rounds)
        cases, seconds = min(budget.per_round, cases), min(budget.seconds_per_round, seconds)
        one = _round(night, options, len(rounds), device, cases, seconds, pairs)
        if one is None:
            return Done("failed", f"a session on {device} broke: see {night.log(STAGE)}")
        night.keep(STAGE, one)
        rounds.append(one)
        told = f"{one.cases} cases, {one.new_pairs} new pairs, {one.findings} new findings"
        print(f"    round {len(rounds)} on {device}: {told}", flush=True)
    cases, findings = sum(one.cases for one in rounds), sum(one.findings for one in rounds)
    note = f"{cases} cases in {len(rounds)} sessions, {findings} findings"
    return Done("findings" if findings else "ok", note)


def _round(
    night: Night,
    options: Options,
    number: int,
    device: str,
    cases: int,
    seconds: float,
    pairs: dict[str, set[tuple[str, str]]],
) -> Round | None:
    """One session; None where the harness broke."""
    from fuzz.session.records import settlement
    from fuzz.session.resume import read_session

    folder = night.folder / "sessions" / f"{number:03}-{device.replace(':', '')}"
    began = time.monotonic()
    code = run(
        night, STAGE, _command(night, options, folder, number, device, cases, seconds), variables=_visible(device)
    )
    if code >= BROKE:
        return None
    records = settlement(folder).apply(read_session(folder).records)
    known = pairs.setdefault(device, set())
    new = _pairs(folder) - known
    known |= new
    return Round(
        device=device,
        folder=str(folder),
        cases=max(len(records), 1),  # a session in which nothing runs ends the night's budget too
        seconds=time.monotonic() - began,
        pairs=len(known),
        new_pairs=len(new),
        findings=len({record.finding for record in records if record.counts}),
    )


def _command(
    night: Night, options: Options, folder: Path, number: int, device: str, cases: int, seconds: float
) -> list[str]:
    """A session, or the rest of one that was cut off."""
    place = ["--ledger", options.ledger, "--jobs", options.jobs]
    if (folder / "session.json").exists():
        return attnfuzz("run", "--resume", str(folder), *place)
    limit = ["--max-time", f"{seconds:.0f}"] if seconds < float("inf") else []
    targets = [part for name in options.targets for part in ("--target", name)]
    asked = ["--device", device.partition(":")[0], "--cases", str(cases), "--seed", str(night.seed * 1000 + number)]
    return attnfuzz("run", *asked, *limit, *targets, *target_files(options), "--output-dir", str(folder), *place)


def _visible(device: str) -> dict[str, str]:
    """One GPU is all that a session on it sees."""
    kind, _, number = device.partition(":")
    return {"CUDA_VISIBLE_DEVICES": number} if kind == "cuda" and number else {}


def _pairs(folder: Path) -> set[tuple[str, str]]:
    """Pairs of features that the cases of a session had, by target."""
    from fuzz.core.features import feature_pairs
    from fuzz.session.resume import read_session

    found: set[tuple[str, str]] = set()
    for record in read_session(folder).records:
        if record.outcome != "reject":
            found.update((f"{record.target} {one}", other) for one, other in feature_pairs(record.features))
    return found
