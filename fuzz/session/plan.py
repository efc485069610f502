"""A session's settings, and its shares: every lane is one target, a number of cases and a seed of its own."""

from __future__ import annotations

import zlib

import msgspec

from fuzz.core.target import Device, Target
from fuzz.generate import cases as strategies
from fuzz.targets.registry import TargetError, load, targets

LANE_CASES = 25  # the least, and the most, cases of a lane: the unit of work that a worker takes


MOST_LANE_CASES = 500


LANES = 128  # at least as many where there are cases enough, so that no worker waits long for the last ones


class Settings(msgspec.Struct, frozen=True):
    """What a session does. `targets` empty: every target that can run on `device` here."""

    targets: tuple[str, ...] = ()
    device: Device = "host"
    cases: int = 300
    seed: int = 0
    size: str = "medium"
    repeats: int = 3
    repeats_deterministic: int = 0  # of cases whose target promises the same bits; 0 = as the others
    files: tuple[str, ...] = ()
    corpus: str = "corpus/regressions"
    folder: str = ""
    minimize_runs: int = 60
    minimize_seconds: float = 45.0
    seconds: float = 0.0  # stop drawing after so many; 0 = no limit

    def __post_init__(self) -> None:
        if self.size not in strategies.SIZES:
            raise ValueError(f"size: must be one of {', '.join(strategies.SIZES)}, got {self.size!r}")
        if self.cases < 1:
            raise ValueError(f"cases: must be at least 1, got {self.cases}")
        if self.repeats_deterministic < 0:
            raise ValueError(f"repeats_deterministic: must be at least 0, got {self.repeats_deterministic}")


class Lane(msgspec.Struct, frozen=True):
    """A share of a session: `cases` cases of one target from one seed."""

    target: str
    index: int
    cases: int
    seed: int

    @property
    def name(self) -> str:
        """As it stands in test ids and records."""
        return f"{self.target}-{self.index}"


def runnable(device: Device, files: tuple[str, ...] = ()) -> dict[str, Target]:
    """The targets of `device` that this machine can run."""
    return {name: t for name, t in targets(files, device).items() if t.missing() is None}


def runnable_here(wanted: Settings) -> None:
    """Raises TargetError for a target of the session that is unknown, or cannot run on this machine, and where none
    can."""
    for name in wanted.targets:
        if (why := load(name, wanted.files, wanted.device).missing()) is not None:
            raise TargetError(f"{name} cannot run here: {why}")
    if not wanted.targets and not runnable(wanted.device, wanted.files):
        raise TargetError(f"no target runs on {wanted.device} here; `attnfuzz targets` says why")


def plan(wanted: Settings) -> list[Lane]:
    """The lanes of a session: the cases are shared equally among the targets. Raises TargetError for an unknown
    target."""
    if wanted.targets:
        names = [load(name, wanted.files, wanted.device).name for name in wanted.targets]
    else:
        names = list(runnable(wanted.device, wanted.files))
    lanes = []
    for i, name in enumerate(names):
        left = wanted.cases // len(names) + (i < wanted.cases % len(names))
        index = 0
        while left > 0:
            count = min(left, max(LANE_CASES, min(wanted.cases // LANES, MOST_LANE_CASES)))
            lanes.append(Lane(name, index, count, _seed(wanted.seed, name, index)))
            left, index = left - count, index + 1
    return sorted(lanes, key=lambda lane: (lane.index, lane.target))


def _seed(session: int, name: str, index: int) -> int:
    return zlib.crc32(f"{session}/{name}/{index}".encode())
