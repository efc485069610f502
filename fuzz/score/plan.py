"""What a score does, as data: its settings, the trials that it is made of, the kernels that they may compile."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import lru_cache
from typing import Literal, TypeAlias

import msgspec

from fuzz.case import Case
from fuzz.compiling import Build
from fuzz.compiling.build import Compiled
from fuzz.session import Lane, explore
from fuzz.size import Size
from fuzz.strategies import cases
from fuzz.targets.registry import targets
from fuzz.targets.target import Device, Target, refusal

Generator: TypeAlias = Literal["ours", "uniform"]
GENERATORS: tuple[Generator, ...] = ("ours", "uniform")
SIZE = Size(1 << 14, 4, 320, 1 << 16)  # as sessions on the emulated GPU: a case takes less than a second

SAMPLED = 300  # cases from which the kernels of a score are chosen


class Settings(msgspec.Struct, frozen=True):
    """What a score does.

    pattern     of the planted bugs' names, as in a shell: 'blocksparse!*'
    seeds       trials of each bug; cases: the most of a trial
    peer_seeds, peer_cases  so many of the trials go on after the bug was found, until every peer's rule and ours has
                seen it or so many cases are done; as many trials draw uniformly
    keys        kernels of each target that a score may compile (each takes seconds): cases that need others are drawn
                again
    minimize_runs  of the first trial that finds a bug; 0: none are minimised
    limits      fewer cases for some bugs (the short form)
    """

    pattern: str = "*"
    seeds: int = 10
    cases: int = 200
    seed: int = 0
    repeats: int = 2
    peer_seeds: int = 3
    peer_cases: int = 40
    keys: int = 24
    minimize_runs: int = 40
    minimize_seconds: float = 60.0
    device: Device = "host"
    limits: dict[str, int] = {}

    def __post_init__(self) -> None:
        for name in ("seeds", "cases", "repeats", "keys"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1, got {getattr(self, name)}")
        for name in ("peer_seeds", "peer_cases", "minimize_runs"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: must not be negative, got {getattr(self, name)}")


class Trial(msgspec.Struct, frozen=True):
    """One bug, looked for once.

    seed       of its cases
    cases      ends it
    peers      until how many cases the peers' rules are asked too (0: only while we look)
    minimize   whether what is found is made smaller
    """

    bug: str
    generator: Generator
    seed: int
    cases: int
    peers: int = 0
    minimize: bool = False

    @property
    def name(self) -> str:
        """What it is known by in the records."""
        return f"{self.generator} {self.bug} {self.seed}"


def bugs(wanted: Settings) -> dict[str, Target]:
    """The planted bugs that can run here, by name."""
    known = targets((), wanted.device, planted=True)
    return {n: t for n, t in known.items() if "!" in n and fnmatch(n, wanted.pattern) and t.missing() is None}


def trials(wanted: Settings) -> list[Trial]:
    """All trials of a score: the first seed of every bug first, so that a score that is cut short says most."""
    found = []
    names = list(bugs(wanted))
    for index in range(wanted.seeds):
        seed = wanted.seed + index
        for bug in names:
            cases = wanted.limits.get(bug, wanted.cases)
            peers = min(wanted.peer_cases, cases) if index < wanted.peer_seeds else 0
            found.append(Trial(bug, "ours", seed, cases, peers, minimize=index == 0 and wanted.minimize_runs > 0))
            if peers:
                found.append(Trial(bug, "uniform", seed, peers, peers))
    return found


def good(bug: Target, device: Device = "host") -> Target:
    """The target that a bug is planted in."""
    return targets((), device)[bug.name.partition("!")[0]]


def size_of(target: Target) -> Size:
    """The size of a trial's cases."""
    return SIZE.within(target.session_size)


def within(case: Case, target: Target, allowed: frozenset[str] | None) -> bool:
    """Whether a case needs no kernel but the allowed ones."""
    return allowed is None or {build.key for build in _builds(case, target)} <= allowed


@lru_cache
def kernels(name: str, device: Device, count: int, repeats: int, seed: int) -> frozenset[str] | None:
    """Keys of at most `count` kernels of a good target, that together differ in as much as possible, and are needed
    often; None where nothing is compiled ahead."""
    target = targets((), device)[name]
    if not isinstance(target, Compiled):
        return None
    uses: Counter[tuple[Build, ...]] = Counter()

    def count_one(case: Case) -> None:
        if refusal(target, case) is None:
            uses[tuple(sorted(_builds(case, target), key=lambda build: build.key))] += 1

    explore(Lane(name, 0, SAMPLED, seed), cases(target, size_of(target), repeats), count_one)
    chosen: set[Build] = set()
    seen: set[tuple[str, str]] = set()
    while uses:
        best = max(uses, key=lambda builds: (len(_values(builds) - seen), uses[builds]))
        del uses[best]
        if len(chosen | set(best)) <= count:
            chosen |= set(best)
            seen |= _values(best)
    return frozenset(build.key for build in chosen)


def _builds(case: Case, target: Target) -> tuple[Build, ...]:
    from fuzz.targets.blocksparse_devices import arch_without_gpu

    assert isinstance(target, Compiled)
    return target.builds(case, arch_without_gpu(target.device))


def _values(builds: tuple[Build, ...]) -> set[tuple[str, str]]:
    """The values of the kernels' options."""
    return set(_pairs(builds))


def _pairs(builds: tuple[Build, ...]) -> Iterator[tuple[str, str]]:
    for build in builds:
        for name, value in json.loads(build.options).items():
            yield f"{name}", str(value)
