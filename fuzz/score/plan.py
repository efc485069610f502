"""Which trials a score is made of, and which kernels they may compile."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import lru_cache

from fuzz.case import Case
from fuzz.compiling import Build
from fuzz.compiling.build import Compiled
from fuzz.score.settings import Settings, Trial
from fuzz.session import Lane, explore
from fuzz.size import Size
from fuzz.strategies import cases
from fuzz.targets.registry import targets
from fuzz.targets.target import Device, Target, refusal

SIZE = Size(1 << 17, 4, 1 << 13, 1 << 19)  # where a target does not say what its sessions draw
SAMPLED = 300  # cases from which the kernels of a score are chosen


def bugs(wanted: Settings) -> dict[str, Target]:
    """The planted bugs that can run here, by name."""
    known = targets((), wanted.device, planted=True)
    return {n: t for n, t in known.items() if "!" in n and fnmatch(n, wanted.pattern) and t.missing() is None}


def trials(wanted: Settings) -> list[Trial]:
    """All trials of a score: the first seed of every bug first, so that a score that is cut short says most."""
    found = []
    names = sorted(bugs(wanted), key=lambda bug: wanted.limits.get(bug, 0))  # in the short form the longest ones last
    for index in range(wanted.seeds):
        for bug in names:
            seed = wanted.starts.get(bug, wanted.seed) + index
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
    """Keys of at most `count` kernels of a good target; None where nothing is compiled ahead. Half of them together
    differ in as much as possible, the others come as cases are drawn, so that no kind of case becomes rare."""
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
        if len(chosen) < count // 2:
            best = max(uses, key=lambda builds: (len(_values(builds) - seen), uses[builds]))
        else:
            best = next(iter(uses))
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
    """The values of the kernels' options, each with the kind of kernel that has it: tiles of the forward pass say
    nothing of those of the backward pass."""
    return set(_pairs(builds))


def _pairs(builds: tuple[Build, ...]) -> Iterator[tuple[str, str]]:
    for build in builds:
        options = json.loads(build.options)
        for name, value in options.items():
            yield f"{options.get('kind')}.{name}", str(value)
