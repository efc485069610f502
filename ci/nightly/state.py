"""The state of a night: a folder with one file, written whole after each step, and the stages' logs.

A night that was cut off goes on; one that is done is followed by another, of the same day too.
"""

from __future__ import annotations

import datetime
import fcntl
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

Status = Literal["ok", "findings", "failed", "skipped"]
FILE = "state.json"
STALE = 36 * 3600.0  # seconds after which a night that was cut off is not gone on with


class Done(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result of a stage. note: one line; seconds: of all its parts, those before a cut too."""

    status: Status
    note: str = ""
    seconds: float = 0.0


class Kept(msgspec.Struct, omit_defaults=True):
    """Contents of the file.

    parts  what stages keep while they run; spent: seconds of stages that are not done; both by stage
    """

    night: str
    began: float
    seed: int
    commit: str = ""
    settings: dict[str, Any] = {}
    done: dict[str, Done] = {}
    parts: dict[str, list[Any]] = {}
    spent: dict[str, float] = {}
    ended: float = 0.0


@dataclass
class Night:
    """A night's folder, which one process at a time owns."""

    folder: Path
    kept: Kept
    _lock: int = field(default=-1, repr=False)

    @property
    def name(self) -> str:
        return self.kept.night

    @property
    def seed(self) -> int:
        return self.kept.seed

    def parts(self, stage: str) -> list[Any]:
        """The values that a stage has kept so far."""
        return self.kept.parts.get(stage, [])

    def keep(self, stage: str, part: Any) -> None:
        """Adds to what a stage has kept."""
        self.kept.parts.setdefault(stage, []).append(msgspec.to_builtins(part))
        self.save()

    def finish(self, stage: str, done: Done) -> None:
        """A stage is done."""
        self.kept.done[stage] = done
        self.save()

    def end(self) -> None:
        """The night is done."""
        self.kept.ended = time.time()
        self.save()

    def save(self) -> None:
        """Writes the state, whole or not at all."""
        beside = self.folder / f".{FILE}"
        beside.write_bytes(msgspec.json.format(msgspec.json.encode(self.kept)))
        os.replace(beside, self.folder / FILE)

    def log(self, stage: str) -> Path:
        """Where the output of a stage goes."""
        folder = self.folder / "logs"
        folder.mkdir(exist_ok=True)
        return folder / f"{stage}.log"


def open_night(
    root: Path, settings: dict[str, Any], commit: str, *, seed: int | None = None, new: bool = False
) -> Night:
    """The newest night if it was cut off, with the settings that it began with; else a new one, which begins."""
    last = newest(root)
    if last is not None and not last.ended and not new and time.time() - last.began < STALE:
        return _owned(Night(root / last.night, last))
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    count = sum(path.name.partition(".")[0] == today for path in root.glob("*/")) if root.is_dir() else 0
    name = f"{today}.{count + 1}" if count else today
    (root / name).mkdir(parents=True)
    drawn = int(today.replace("-", "")) * 10 + count if seed is None else seed
    night = _owned(Night(root / name, Kept(name, time.time(), drawn, commit, settings)))
    night.save()
    return night


def newest(root: Path, *, done: bool = False) -> Kept | None:
    """The night that began last; done: among those that are done."""
    found = []
    for path in root.glob(f"*/{FILE}"):
        kept = msgspec.json.decode(path.read_bytes(), type=Kept)
        if kept.ended or not done:
            found.append(kept)
    return max(found, key=lambda kept: kept.began, default=None)


def commits(root: Path) -> dict[str, str]:
    """The commit of every night that is in a folder of nights."""
    kept = (msgspec.json.decode(path.read_bytes(), type=Kept) for path in root.glob(f"*/{FILE}"))
    return {one.night: one.commit for one in kept}


def _owned(night: Night) -> Night:
    """The night, with its folder's lock. Raises SystemExit where another process has it."""
    night._lock = os.open(night.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(night._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SystemExit(f"nightly: {night.folder}: another process runs this night") from None
    return night
