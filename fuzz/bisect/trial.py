"""Runs of one case at one revision, in a process with that revision's code; and whether they fail as the bug does."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fuzz.bisect.revisions import Place, Result, Revision, Revisions, Untestable
from fuzz.core.case import Case
from fuzz.core.signature import explains, signature
from fuzz.core.verdict import Signature, Verdict

CHILD = Path(__file__).with_name("trial_child.py")
LIMIT = 1800.0  # seconds that the start, or one run, may take: a hang of the kernel ends long before, as a verdict


@dataclass(frozen=True)
class Trials:
    """Runs of a case at any revision.

    file    an entry of the corpus; case: its case
    wanted  the failure that is looked for; None: any
    device  'host', 'emulator' or 'cuda'
    """

    revisions: Revisions
    file: Path
    case: Case
    wanted: Signature | None
    device: str

    @contextmanager
    def at(self, revision: Revision) -> Iterator[Callable[[], Result]]:
        """A function that runs the case once. It, or entering the context, raises Untestable."""
        with self.revisions.prepare(revision) as place, _child(place, self.file.resolve(), self.device) as run:
            yield lambda: self._judged(run())

    def _judged(self, verdict: Verdict) -> Result:
        if verdict.outcome == "reject":
            raise Untestable(f"refuses the case: {verdict.reason}")
        if not verdict.bad:
            return "clean"
        if self.wanted is None or explains(self.wanted, signature(self.case, verdict)):
            return "failed"
        return "other"


@contextmanager
def _child(place: Place, file: Path, device: str) -> Iterator[Callable[[], Verdict]]:
    """A process that runs the case once at each call."""
    command = [place.python, "-P", str(CHILD), str(file), device, *place.files]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, place.paths)), "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, cwd=place.folder, env=environment, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip
        try:
            yield lambda: _run(process, errors)
        finally:
            _end(process)


def _run(process: subprocess.Popen[str], errors: Any) -> Verdict:
    assert process.stdin is not None and process.stdout is not None
    timer = threading.Timer(LIMIT, process.kill)
    timer.start()
    try:
        process.stdin.write("run\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        line = process.stdout.readline()
    finally:
        timer.cancel()
    if not line:
        errors.seek(0)
        last = (errors.read().strip().splitlines() or ["nothing on stderr"])[-1]
        raise Untestable(f"its process ended with {process.wait()}: {last}")
    answer = json.loads(line)
    if "untestable" in answer:
        raise Untestable(answer["untestable"])
    try:
        return msgspec.convert(answer["verdict"], Verdict)
    except msgspec.ValidationError as error:
        raise Untestable(f"its verdict is not one that this version reads: {error}") from error


def _end(process: subprocess.Popen[str]) -> None:
    """Lets the child end, which ends its own children; kills it where it does not."""
    assert process.stdin is not None and process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
