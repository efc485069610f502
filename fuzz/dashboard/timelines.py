"""Timelines of deadlocks: their saved cases run once more on the emulated GPU, each drawn as a picture of the site.

A case needs seconds and perhaps a compiler, so this is asked for; a picture that a build before has made is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from fuzz.core.case import Case
from fuzz.core.target import Device
from fuzz.core.verdict import Verdict
from fuzz.dashboard.collect.news import OPEN
from fuzz.dashboard.model import SignatureItem, Site
from fuzz.targets.registry import TargetError, load

FOLDER = "timelines"
MOST_BYTES = 300_000  # of a picture


def timelines(
    site: Site, out: Path, run: Callable[[Case, Path], Verdict], most: int, files: Sequence[str] = ()
) -> dict[str, str]:
    """Paths of the pictures in the site, by signature.

    run  runs a case and writes its timeline to a path. most: cases that are run
    """
    found: dict[str, str] = {}
    for bug in site.signatures:
        if bug.case is None or bug.kind != "hang" or bug.state not in OPEN:
            continue
        case = msgspec.convert(bug.case, Case)
        picture = Path(FOLDER) / f"{case.id}.svg"
        if not (out / picture).is_file():
            if most <= 0 or not _traces(bug, files):
                continue
            most -= 1
            _draw(case, out / picture, run)
        if (out / picture).is_file():
            found[bug.uid] = str(picture)
    return found


def _traces(bug: SignatureItem, files: Sequence[str]) -> bool:
    devices: dict[str, Device] = {"host": "host", "emulator": "emulator"}
    try:
        target = load(bug.target, tuple(files), devices.get(bug.device, "host"))
    except TargetError:
        return False
    return target.device == "emulator" and target.traces and target.missing() is None


def _draw(case: Case, picture: Path, run: Callable[[Case, Path], Verdict]) -> None:
    with TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        run(case, trace)
        drawn = trace.with_suffix(".svg")
        if drawn.is_file() and drawn.stat().st_size <= MOST_BYTES:
            picture.parent.mkdir(parents=True, exist_ok=True)
            picture.write_bytes(drawn.read_bytes())
