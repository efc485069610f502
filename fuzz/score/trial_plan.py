"""Trials that a score is made of, and kernels that they may compile."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatch
from functools import lru_cache
from typing import TypeAlias

from fuzz.compiling import Build
from fuzz.compiling.build_key import Compiled
from fuzz.core.case import Case
from fuzz.core.case_limits import Size
from fuzz.core.refusal import refusal
from fuzz.core.target import Device, Target
from fuzz.generate.cases import drawer
from fuzz.score.settings import Settings, Trial
from fuzz.session.draw import explore
from fuzz.session.plan import Shard
from fuzz.targets.registry import targets

SIZE = Size(1 << 17, 4, 1 << 13, 1 << 19)  # where a target does not say what its sessions draw
Values: TypeAlias = frozenset[tuple[str, str]]  # of options, by name
MANY = 3  # tiles of keys: as good as more
SAMPLED = 300  # cases from which the kernels of a score are chosen


def bugs(settings: Settings) -> dict[str, Target]:
    """The mutants that can run here, by name."""
    known = targets((), settings.device, mutants=True)
    skip = set(settings.skip)
    wanted = {n: t for n, t in known.items() if "!" in n and fnmatch(n, settings.pattern) and n not in skip}
    return {n: t for n, t in wanted.items() if t.missing() is None}


def trials(settings: Settings) -> list[Trial]:
    """All trials of a score: one seed of every mutant after the other, so that a score that is cut short says most. The
    last seeds come again for the other criteria, which judge more cases than ours need, and to minimise: such a trial
    takes several times as long. After all of them come uniform cases."""
    found, judged, uniform = [], [], []
    order = {bug: at for at, bug in enumerate(settings.first)}
    names = sorted(bugs(settings), key=lambda bug: order.get(bug, len(order)))
    for index in range(settings.seeds):
        minimize = index == settings.seeds - 1 and settings.minimize_runs > 0
        for bug in names:
            seed = settings.starts.get(bug, settings.seed) + index
            cases = settings.limits.get(bug, settings.cases)
            peers = min(settings.peer_cases, cases) if index >= settings.seeds - settings.peer_seeds else 0
            found.append(Trial(bug, "ours", seed, cases, minimize=minimize and not peers))
            if peers:
                judged.append(Trial(bug, "ours", seed, cases, peers, minimize=minimize))
                uniform.append(Trial(bug, "uniform", seed, peers, peers))
    return found + judged + uniform


def good(bug: Target, device: Device = "host") -> Target:
    """The target that a mutant is derived from."""
    return targets((), device)[bug.name.partition("!")[0]]


def size_of(target: Target) -> Size:
    """The size of a trial's cases."""
    return SIZE.within(target.session_size)


def within(case: Case, target: Target, allowed: frozenset[str] | None) -> bool:
    """True if a case needs no kernel but the allowed ones."""
    return allowed is None or {build.key for build in _builds(case, target)} <= allowed


@lru_cache
def kernels(name: str, device: Device, count: int, repeats: int, seed: int) -> frozenset[str] | None:
    """Keys of at most `count` kernels of a good target; None where nothing is compiled ahead. They are chosen, one
    case's after another's, so that the cases which need no others stay as mixed as all that are drawn: with each value
    of the kernels' options in as large a share of them."""
    target = targets((), device)[name]
    if not isinstance(target, Compiled):
        return None
    sample: list[tuple[frozenset[Build], Values]] = []

    def look(case: Case) -> None:
        if refusal(target, case) is None and (builds := frozenset(_builds(case, target))):
            sample.append((builds, _values(case, target, builds)))

    explore(Shard(name, 0, SAMPLED, seed), drawer(target, size_of(target), repeats), look)
    expected = _shares(values for _, values in sample)
    chosen: frozenset[Build] = frozenset()
    while True:
        able = [one for one, _ in sample if not one <= chosen and len(chosen | one) <= count]
        if not able:
            return frozenset(build.key for build in chosen)
        far = []
        for one in dict.fromkeys(able):
            shares = _shares(values for needs, values in sample if needs <= chosen | one)
            far.append((_distance(shares, expected), sorted(build.key for build in one), one))
        chosen |= min(far)[2]


def _shares(sample: Iterable[Values]) -> dict[tuple[str, str], float]:
    """Share of the cases that have each value."""
    counts: Counter[tuple[str, str]] = Counter()
    total = 0
    for values in sample:
        counts.update(values)
        total += 1
    return {value: n / total for value, n in counts.items()}


def _distance(some: Mapping[tuple[str, str], float], expected: Mapping[tuple[str, str], float]) -> float:
    """Chi-squared distance of some shares from the expected ones."""
    return sum((share - some.get(value, 0.0)) ** 2 / share for value, share in expected.items())


def _builds(case: Case, target: Target) -> tuple[Build, ...]:
    from fuzz.targets.blocksparse.devices import arch_without_gpu

    assert isinstance(target, Compiled)
    return target.builds(case, arch_without_gpu(target.device))


def _values(case: Case, target: Target, builds: Iterable[Build]) -> Values:
    """The values of its kernels' options, each with the kind of kernel that has it: tiles of the forward pass say
    nothing of those of the backward pass. Each once more with the number of tiles of keys: a kernel that meets one or
    two only would hide what shows from the third one on. And whether a part of it runs alone."""
    part = bool(target.ctas_of(case))
    return frozenset(_pairs(case, builds)) | {("part", str(part))}


def _pairs(case: Case, builds: Iterable[Build]) -> Iterator[tuple[str, str]]:
    for build in builds:
        options = json.loads(build.options)
        tiles = min(-(-case.problem.len_k // options["tile_n"]), MANY) if "tile_n" in options else None
        for name, value in options.items():
            yield f"{options.get('kind')}.{name}", str(value)
            if tiles is not None:
                yield f"{options.get('kind')}.{name}, tiles", f"{value}, {tiles}"
