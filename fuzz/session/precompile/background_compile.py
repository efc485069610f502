"""Compiles what the shards of a session need beside the session: shards that need nothing run at once, and every other
one as soon as its kernels are there.

What is not foreseen here (long shards climb, see build_plan.py) is compiled by the worker that meets it. So is what
fails, which then says why for every case that needs it. The cases of a shard need mostly the same kernels as those of
another. So the first PLANNED cases of each are looked at, or PLANNED_OF_SLICE, for PLANNING seconds at most; where
ENOUGH shards of a target in a row lack nothing, its others are let go too; and the shards that planning did not come to
wait until all that it found is there: workers that all compile for themselves would take the processor from one
another.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from hypothesis.errors import HypothesisWarning
from rich.console import Console

from fuzz.compiling.build_key import Build, Compiled
from fuzz.compiling.cache import Cache
from fuzz.compiling.pool import Ended, Pool, auto_jobs
from fuzz.core.case import Case
from fuzz.core.refusal import refusal
from fuzz.core.target import Target
from fuzz.process.signals import held
from fuzz.session.plan import Shard, compiled, plan, runnable
from fuzz.session.precompile.build_plan import builds_of
from fuzz.session.precompile.compile_progress import compile_all, summary
from fuzz.session.precompile.compile_records import write_compiled
from fuzz.session.settings import Settings

NICE = 5  # of the compiling: the cases that can be run come first
PLANNING = 8.0  # seconds; a case is drawn in some milliseconds
PLANNED = 40  # cases of a shard
PLANNED_OF_SLICE = 10  # where the session ends by time: about those of its first time slice
ENOUGH = 2  # shards


class BackgroundCompile:
    """Compiles in a thread, in the order of `shards`.

    ready      called once with each shard as soon as it can be run: from `start` for the shards that need no compiling,
               else from the thread
    say        called with each line of the summary at the end
    make_pool  what compiles; None: processes on this machine
    archs      by target: what the workers run; None: this machine's

    Raises CacheError from `start` for a bad setting of the cache. Leaving the `with` block, also by Ctrl-C, ends the
    compiling; what is compiled by then is in the cache.
    """

    def __init__(
        self,
        settings: Settings,
        shards: Sequence[Shard],
        ready: Callable[[Shard], None],
        say: Callable[[str], None] = lambda text: None,
        *,
        make_pool: Callable[[], Pool] | None = None,
        archs: Mapping[str, str] | None = None,
    ) -> None:
        self._settings, self._ready, self.say = settings, ready, say
        self._make_pool, self._archs = make_pool or _local_pool, archs
        self._waiting = {shard.name: shard for shard in shards}
        self._pool: Pool | None = None
        self._thread: threading.Thread | None = None
        self._timer: threading.Timer | None = None
        self._planning, self._total, self._done, self._failed = False, 0, 0, 0
        self._unplanned: set[str] = set()  # targets whose `builds` raised

    def __enter__(self) -> BackgroundCompile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, plan_first: bool = False) -> None:
        """Lets the shards go that need nothing, and begins to compile for the others.

        plan_first  draws the cases before it returns, for a process that draws cases in its main thread too
        """
        names = {shard.target for shard in self._waiting.values()}
        archs = self._archs_of(names)
        for shard in [shard for shard in self._waiting.values() if shard.target not in archs]:
            self._release(shard)
        if not self._waiting:
            return
        self._pool, self._planning = self._make_pool(), True
        if self._pool.cache.notice:
            self.say(f"attnfuzz: {self._pool.cache.notice}")
        missing = self._missing(archs) if plan_first else None
        if self._settings.seconds:  # nothing is run after that
            self._timer = threading.Timer(self._settings.seconds, self.stop)
            self._timer.daemon = True
            self._timer.start()
        self._thread = threading.Thread(target=self._run, args=(archs, missing), name="compile", daemon=True)
        with held():  # Ctrl-C is the main thread's
            self._thread.start()

    def stop(self) -> None:
        """Ends the compiling soon, and does not wait for it."""
        if self._pool is not None:
            self._pool.stop()

    def close(self) -> None:
        """Ends the compiling, and waits until its processes have ended."""
        self.stop()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            self._thread.join()

    def progress(self) -> str:
        """What it does at this moment, in words; '' once it is done."""
        if self._planning:
            return "planning what to compile"
        if self._done == self._total:
            return ""
        failed = f", {self._failed} failed" if self._failed else ""
        return f"compiling {self._total} kernels, {self._done} done{failed}"

    def _archs_of(self, names: Iterable[str]) -> dict[str, str]:
        """By target that is compiled ahead: for which arch."""
        found = {name: target for name in names if (target := compiled(name, self._settings)) is not None}
        if self._archs is None:
            return {name: target.arch() for name, target in found.items()}
        return {name: self._archs[name] for name in found if name in self._archs}

    def _run(self, archs: dict[str, str], missing: dict[str, set[Build]] | None) -> None:
        assert self._pool is not None
        try:
            missing = self._missing(archs) if missing is None else missing
            self._compile(missing)
        except Exception as error:  # the worker that needs the kernel meets the error again, and says it in full
            self.say(f"attnfuzz: nothing more is compiled ahead: {type(error).__name__}: {error}")
        finally:
            self._planning, self._total = False, self._done
            self._pool.close()
            for shard in list(self._waiting.values()):
                self._release(shard)

    def _missing(self, archs: dict[str, str]) -> dict[str, set[Build]]:
        """What the cache lacks, by the name of the shard; shards that lack nothing are let go."""
        assert self._pool is not None
        until, planned = time.monotonic() + PLANNING, PLANNED_OF_SLICE if self._settings.seconds else PLANNED
        missing: dict[str, set[Build]] = {}
        there: dict[Build, bool] = {}
        complete: Counter[str] = Counter()  # by target: shards in a row that lack nothing
        for shard in list(self._waiting.values()):
            if time.monotonic() > until or self._pool.stopped:
                break
            if complete[shard.target] == ENOUGH:
                self._release(shard)
                continue
            with warnings.catch_warnings():  # pytest's session has not begun yet: cases are drawn all the same
                warnings.simplefilter("ignore", HypothesisWarning)
                builds = builds_of(shard, self._settings, archs[shard.target], planned, self._not_planned)
            for build in builds:
                if build not in there:
                    there[build] = self._pool.cache.load(build) is not None
            lacking = {build for build in builds if not there[build]}
            complete[shard.target] = 0 if lacking else complete[shard.target] + 1
            if lacking:
                missing[shard.name] = lacking
                self._total = len(set().union(*missing.values()))
            else:
                self._release(shard)
        self._record(build for build, cached in there.items() if cached)
        return missing

    def _not_planned(self, case: Case, error: Exception) -> None:
        """Says that a case's kernels are not compiled ahead; of a target once. Its worker meets the error again."""
        if case.target not in self._unplanned:
            self._unplanned.add(case.target)
            about = f"{case.target}: kernels of case {case.id}, and of others maybe, are not compiled ahead"
            self.say(f"attnfuzz: {about}: {type(error).__name__}: {error}")

    def _compile(self, missing: dict[str, set[Build]]) -> None:
        assert self._pool is not None
        self._planning = False
        todo = dict.fromkeys(build for name in missing for build in sorted(missing[name], key=lambda build: build.key))
        ended: list[Ended] = []
        began = time.monotonic()
        for one in self._pool.build(todo):
            ended.append(one)
            self._done = len(ended)
            self._failed += one.status == "failed"
            for name, builds in missing.items():
                builds.discard(one.build)
                if not builds and name in self._waiting:
                    self._release(self._waiting[name])
        self._record(ended)
        if ended:
            for line in summary(ended, time.monotonic() - began, self._pool):
                self.say(line)

    def _record(self, ended: Iterable[Ended | Build]) -> None:
        if self._settings.folder:
            with suppress(OSError):  # a full disk, which the workers meet too
                write_compiled(Path(self._settings.folder), ended)

    def _release(self, shard: Shard) -> None:
        del self._waiting[shard.name]
        self._ready(shard)


def _local_pool() -> Pool:
    return Pool(Cache(), auto_jobs(), nice=NICE)


def compile_ahead(settings: Settings, console: Console) -> list[Ended]:
    """Compiles what the cache lacks for a whole session, before it begins; returns how each build ended.

    Says nothing where there is nothing to compile. Raises TargetError for an unknown target.
    """
    names = settings.targets or tuple(runnable(settings.device, settings.files))
    settings = msgspec.structs.replace(settings, targets=names)
    archs = {name: target.arch() for name in names if (target := compiled(name, settings)) is not None}
    shards = [shard for shard in plan(settings) if shard.target in archs]
    builds = [build for shard in shards for build in builds_of(shard, settings, archs[shard.target])]
    return _compile_now(builds, console)


def compile_for(target: Target, cases: Iterable[Case], console: Console) -> list[Ended]:
    """Compiles what those of `cases` need that the target takes; nothing for a target that is not compiled ahead."""
    if not isinstance(target, Compiled):
        return []
    taken = [case for case in cases if refusal(target, case) is None]
    return _compile_now([build for case in taken for build in target.builds(case, target.arch())], console)


def _compile_now(builds: list[Build], console: Console) -> list[Ended]:
    if not builds:
        return []
    cache = Cache()
    missing = [build for build in dict.fromkeys(builds) if cache.load(build) is None]
    if not missing:
        return []
    if cache.notice:
        console.print(cache.notice, highlight=False, markup=False, soft_wrap=True)
    with Pool(cache, auto_jobs()) as pool:
        return compile_all(pool, missing, console)
