"""Before a first case: what the kernels of a session, or of a list of cases, need is compiled, with every core and a
progress bar.

What is not foreseen here (long shards climb, see plan.py; planning stops after PLANNING seconds) is compiled by the
worker that meets it. So is what fails, which then says why for every case that needs it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from rich.console import Console

from fuzz.compiling.build_key import Build, Compiled
from fuzz.compiling.cache import Cache
from fuzz.compiling.pool import Ended, Pool, auto_jobs
from fuzz.core.case import Case
from fuzz.core.refusal import refusal
from fuzz.core.target import Target
from fuzz.session.build_plan import plan
from fuzz.session.compile_progress import compile_all
from fuzz.session.plan import runnable
from fuzz.session.settings import Settings
from fuzz.targets.registry import load

PLANNING = 20.0  # seconds; a case is drawn in about a millisecond


def compile_ahead(settings: Settings, console: Console) -> list[Ended]:
    """Compiles what the cache lacks for the session `settings`, each target for its own device; returns how each ended.

    Says nothing where there is nothing to compile. Raises TargetError for an unknown target.
    """
    settings = msgspec.structs.replace(
        settings, targets=settings.targets or tuple(runnable(settings.device, settings.files))
    )
    return _compile(_needed(settings), console)


def compile_for(target: Target, cases: Iterable[Case], console: Console) -> list[Ended]:
    """The same for `cases` of one target, those that it takes; nothing for a target that does not compile ahead."""
    if not isinstance(target, Compiled):
        return []
    taken = [case for case in cases if refusal(target, case) is None]
    return _compile([build for case in taken for build in target.builds(case, target.arch())], console)


def _compile(builds: list[Build], console: Console) -> list[Ended]:
    if not builds:
        return []
    cache = Cache()
    missing = [build for build in dict.fromkeys(builds) if cache.load(build) is None]
    if not missing:
        return []
    with Pool(cache, auto_jobs()) as pool:
        return compile_all(pool, missing, console)


def _needed(settings: Settings) -> list[Build]:
    names: dict[str, list[str]] = {}
    for name in settings.targets:
        target = load(name, settings.files, settings.device)
        if isinstance(target, Compiled):
            names.setdefault(target.arch(), []).append(name)
    found: list[Build] = []
    for arch, only in names.items():
        found += plan(settings, arch, tuple(only), seconds=PLANNING).builds
    return found
