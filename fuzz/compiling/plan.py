"""plan: the build keys that a seeded session needs, known before it starts, because its cases are data.

Draws every case of the session without running it (about a millisecond each) and asks its target what it compiles.
Exact for lanes below `session.CLIMBING_CASES` cases; in longer ones Hypothesis also climbs on what it sees of the runs,
and a key that only such a case needs is compiled when it comes (service.py).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass

import msgspec

from fuzz.case import Case
from fuzz.compiling.build import Build, Compiled
from fuzz.session import Settings, cases_of, explore, standing
from fuzz.session import plan as lanes_of
from fuzz.targets.registry import load, targets
from fuzz.targets.target import refusal


@dataclass(frozen=True)
class Plan:
    """builds: each key once, the one that most cases need first. uses: cases by key. cases: cases drawn by target."""

    builds: tuple[Build, ...]
    uses: dict[str, int]
    cases: dict[str, int]


def plan(wanted: Settings, arch: str, only: tuple[str, ...] = (), seconds: float = math.inf) -> Plan:
    """The plan of a session for `arch`.

    only     compile for these targets (all that compile ahead); the session is `wanted` either way
    seconds  no further lane is looked at after so many

    Raises TargetError for an unknown target, ValueError for a bad arch.
    """
    if not wanted.targets:
        # Which targets the other machine can run is not known here: all of its device share the cases.
        wanted = msgspec.structs.replace(wanted, targets=tuple(targets(wanted.files, wanted.device)))
    uses: Counter[Build] = Counter()
    drawn: Counter[str] = Counter()
    until = time.monotonic() + seconds
    for lane in lanes_of(wanted):
        if time.monotonic() > until:
            break
        target = load(lane.target, wanted.files, wanted.device)
        if not isinstance(target, Compiled) or (only and lane.target not in only):
            continue

        def count(case: Case, target=target) -> None:
            drawn[case.target] += 1
            if refusal(target, case) is None:
                uses.update(target.builds(case, arch))

        explore(lane, cases_of(target, wanted), count, standing(lane, target))
    builds = tuple(build for build, _ in uses.most_common())
    return Plan(builds, {build.key: uses[build] for build in builds}, dict(drawn))
