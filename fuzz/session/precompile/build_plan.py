"""plan: the build keys that a seeded session needs, known before it starts, because its cases are data.

Draws every case of the session without running it (about a millisecond each) and asks its target what it compiles.
Exact but for shards that climb (draw.py): in those Hypothesis goes by what it sees of the runs, and a key that only
such a case needs is compiled when it comes (fuzz/compiling/obtain.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import msgspec

from fuzz.compiling.build_key import Build, Compiled
from fuzz.core.case import Case
from fuzz.core.refusal import refusal
from fuzz.core.target import Target
from fuzz.session.draw import Stop, drawer_of, explore, seed_cases
from fuzz.session.plan import Shard, compiled
from fuzz.session.plan import plan as shards_of
from fuzz.session.settings import Settings
from fuzz.targets.registry import TargetError, load, targets


@dataclass(frozen=True)
class Plan:
    """builds: each key once, the one that most cases need first. uses: cases by key. cases: cases drawn by target.
    left_out: why a target that nobody named is not planned for."""

    builds: tuple[Build, ...]
    uses: dict[str, int]
    cases: dict[str, int]
    left_out: dict[str, str] = field(default_factory=dict)


def plan(settings: Settings, arch: str) -> Plan:
    """The plan of a session for `arch`.

    Raises TargetError for a target that is unknown, or named and cannot be compiled here, ValueError for a bad arch.
    """
    named = settings.targets
    offered = {name: load(name, settings.files, settings.device) for name in named} or targets(
        settings.files, settings.device
    )
    left_out = {name: why for name, target in offered.items() if (why := _uncompilable(target)) is not None}
    for name in named:
        if name in left_out:
            raise TargetError(f"{name} cannot be compiled here: {left_out[name]}")
    if not named:
        # Which targets the other machine can run is not known here: all of its device share the cases, but for those
        # whose packages are not even here.
        settings = msgspec.structs.replace(settings, targets=tuple(name for name in offered if name not in left_out))
    uses: Counter[Build] = Counter()
    drawn: Counter[str] = Counter()
    for shard in shards_of(settings):
        if compiled(shard.target, settings) is not None:
            drawn[shard.target] += shard.cases
            uses.update(builds_of(shard, settings, arch))
    builds = tuple(build for build, _ in uses.most_common())
    return Plan(builds, {build.key: uses[build] for build in builds}, dict(drawn), left_out)


def builds_of(
    shard: Shard,
    settings: Settings,
    arch: str,
    most: int | None = None,
    failed: Callable[[Case, Exception], None] | None = None,
) -> Counter[Build]:
    """What the cases of one shard need that its target takes, each with the number of cases that need it. Empty for a
    target that is not compiled ahead.

    most    of the first so many cases only
    failed  is called where the target's `builds` raises; the other cases' kernels are there. None: it is raised
    """
    uses: Counter[Build] = Counter()
    drawn = count(1)
    target = load(shard.target, settings.files, settings.device)
    if not isinstance(target, Compiled):
        return uses
    builds = target.builds

    def add(case: Case) -> None:
        if refusal(target, case) is None:
            try:
                uses.update(builds(case, arch))
            except Exception as error:
                if failed is None:
                    raise
                failed(case, error)
        if next(drawn) == most:
            raise Stop

    explore(shard, drawer_of(target, settings, shard), add, seed_cases(shard, target, settings))
    return uses


def _uncompilable(target: Target) -> str | None:
    return target.uncompilable() if isinstance(target, Compiled) else None
