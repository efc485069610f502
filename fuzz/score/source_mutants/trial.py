"""One mutant: a session with a copy of the kernels in which one line is changed.

The session is a process of its own with a copy of the packages, so that nothing of it, the cache of compiled kernels
included, takes the mutant for the clean kernel. It ends with its first failure.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from fuzz.score.source_mutants.operators import mutated, probed
from fuzz.score.source_mutants.results import Result, SourceMutant
from fuzz.score.source_mutants.sampling import ROOT
from fuzz.session.records import Reader, Record

LOOK = 0.2  # seconds between two looks at a session's records
OK, FINDINGS, USAGE = 0, 1, 2  # exit codes of attnfuzz (fuzz/cli/exit_codes.py)
SAID = 400  # characters of what a session that did not start has said


@dataclass(frozen=True)
class Plan:
    """The session that every mutant gets.

    seconds  at most, of a session
    ends     when all sessions end, by time.monotonic
    """

    target: str
    device: str
    cases: int
    seed: int
    seconds: float
    ends: float = math.inf


class TimeIsUp(Exception):
    """A session was ended because the time of all of them is up: nothing is known of its mutant."""


@dataclass(frozen=True)
class End:
    """End of a session: its first failure if there was one, the cases that were run, its exit code (None: it was ended
    for its failure, or for its time), what it said."""

    failure: Record | None
    cases: int
    code: int | None
    said: str


def try_mutant(mutant: SourceMutant, plan: Plan) -> Result:
    """The result of a mutant, by one session. Raises TimeIsUp."""
    began = time.monotonic()
    end = _session(mutant, mutated((ROOT / mutant.file).read_text(), mutant), plan)
    return replace(_result(mutant, end), seconds=round(time.monotonic() - began, 1))


def probe(missed: Result, plan: Plan) -> Result:
    """The result of a mutant that was missed, when a second session has shown whether a case comes to the line.
    Raises TimeIsUp."""
    began = time.monotonic()
    end = _session(missed.mutant, probed((ROOT / missed.mutant.file).read_text(), missed.mutant), plan)
    reached = end.failure is not None or end.code not in (OK, None)
    seconds = round(missed.seconds + time.monotonic() - began, 1)
    return replace(missed, status="missed" if reached else "not_reached", probed=True, seconds=seconds)


def clean(plan: Plan) -> End:
    """Failures of the same session with an unchanged copy, which are not the mutant's. Raises TimeIsUp."""
    with _copy() as folder:
        return _run(folder, plan)


def _result(mutant: SourceMutant, end: End) -> Result:
    if end.failure is not None:
        first = end.failure.signature
        by = end.failure.outcome + (f":{first.oracle}:{first.kind}" if first is not None else "")
        return Result(mutant.id, mutant, "found", end.cases, by, end.failure.message)
    if end.code == OK or end.code is None:
        return Result(mutant.id, mutant, "missed", end.cases, "" if end.code is not None else "time")
    if end.cases == 0 and end.code == USAGE:
        return Result(mutant.id, mutant, "stillborn", message=end.said)
    return Result(mutant.id, mutant, "fault", end.cases, message=end.said)


def _session(mutant: SourceMutant, text: str, plan: Plan) -> End:
    with _copy() as folder:
        (folder / mutant.file).write_text(text)
        return _run(folder, plan)


@contextmanager
def _copy() -> Iterator[Path]:
    """A folder with a copy of the packages, removed at the end. With their bytecode: an unchanged file has its date."""
    with tempfile.TemporaryDirectory(prefix="attnfuzz-mutant-") as made:
        for name in ("fuzz", "kernels", "oracles"):
            shutil.copytree(ROOT / name, Path(made) / name)
        yield Path(made)


def _run(folder: Path, plan: Plan) -> End:
    """Runs the session to its end or its first failure. Raises TimeIsUp."""
    if time.monotonic() >= plan.ends:
        raise TimeIsUp
    command = [sys.executable, "-m", "fuzz.score.source_mutants.session", plan.target, plan.device]
    command += [str(plan.cases), str(plan.seed), str(plan.seconds), str(folder / "session")]
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    ends, first, count = time.monotonic() + 2 * plan.seconds, None, 0
    records = Reader(folder / "session")
    with (folder / "said").open("w+b") as said:
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | {"PYTHONPATH": path}, stdout=said, stderr=said, start_new_session=True
        )
        try:
            while first is None and process.poll() is None and time.monotonic() < ends:
                time.sleep(LOOK)
                first, count = _first_failure(records.new(), count)
                if first is None and time.monotonic() >= plan.ends:
                    raise TimeIsUp
            if first is None:
                first, count = _first_failure(records.new(), count)
            code = process.poll() if first is None else None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # its workers and children end with it
            process.wait()
        said.seek(0)
        text = said.read().decode(errors="replace").strip()
    return End(first, count, code, text[-SAID:])


def _first_failure(records: Iterable[Record], before: int) -> tuple[Record | None, int]:
    """The first record that is a failure, and the position of the last one looked at."""
    for record in records:
        before += 1
        if record.outcome not in ("pass", "reject"):
            return record, before
    return None, before
