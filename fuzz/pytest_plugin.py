"""The session as a pytest run: options, shards as items, progress line, table at the end.

Every xdist worker runs its shards with one persistent child; records go to files, and the controller follows those. The
controller also compiles what the shards need, beside them: a shard's item waits until its kernels are there, and shards
that need none come first. The plugin does nothing in a pytest run that collects no shard.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fuzz.ledger.place import add_option
from fuzz.process.imports import end_without_collecting, freeze, importing
from fuzz.session.settings import add_options, from_options

if TYPE_CHECKING:
    from fuzz.devices.emulator import EmulatedGpu

PREFIX = "fuzz-"
_FOLDER: pytest.StashKey[str] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of a session: those of `attnfuzz run`, each with the prefix --fuzz."""
    add = parser.getgroup("attnfuzz", "attnfuzz sessions (pytest fuzz)").addoption
    add_options(add, PREFIX)
    add_option(add, PREFIX)


def pytest_configure(config: pytest.Config) -> None:
    """Chooses the session's folder in the controller; a worker is told, and does not outlive the controller."""
    if not _collects_a_session(config):
        return
    if hasattr(config, "workerinput"):
        from fuzz.process.parent_death import leave_with_parent

        leave_with_parent()
    with importing():
        from fuzz.session.pool import new_folder
    freeze()
    end_without_collecting()
    if hasattr(config, "workerinput"):
        return
    folder = config.getoption(f"--{PREFIX}output-dir") or new_folder()
    config.stash[_FOLDER] = folder
    config.pluginmanager.register(_Controller(config, Path(folder)), "attnfuzz-controller")
    if config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.register(_Handover(folder, config.getoption(f"--{PREFIX}max-time")), "attnfuzz-handover")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Makes the shards parameters, in the order in which they are to be run."""
    if "attnfuzz_shard" in metafunc.fixturenames:
        from fuzz.session.plan import plan

        shards = plan(_settings(metafunc.config))
        metafunc.parametrize("attnfuzz_shard", shards, ids=[shard.name for shard in shards])


@pytest.fixture
def emulated_gpu() -> Iterator[EmulatedGpu]:
    """The emulated GPU, for a test of a Triton kernel: `kernel[grid](…)` takes CPU tensors, and raises EmulationError
    for what is found. TRITON_INTERPRET must not be set when triton is imported."""
    from fuzz.devices.emulator import emulated

    with emulated() as gpu:
        yield gpu


@pytest.fixture(scope="session")
def attnfuzz_worker(request: pytest.FixtureRequest) -> Iterator[Any]:
    """This process's Worker: one child for all its shards. After the last one it settles failures."""
    from fuzz.session.worker import Worker

    given = getattr(request.config, "workerinput", {})
    with Worker(_settings(request.config), given.get("workerid", "main"), given.get("attnfuzz_ends")) as worker:
        yield worker
        worker.settle()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives a shard a very long time limit of pytest-timeout's: the runner's deadlines are the guard."""
    for item in items:
        if "attnfuzz_shard" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(24 * 3600))


class _Handover:
    """Tells each xdist worker the session's folder, and when the session ends by time.monotonic()."""

    def __init__(self, folder: str, seconds: float) -> None:
        self.folder = folder
        self.ends = time.monotonic() + seconds if seconds else None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Called by xdist for every worker."""
        node.workerinput["attnfuzz_folder"] = self.folder
        node.workerinput["attnfuzz_ends"] = self.ends


class _Controller:
    """Compiles beside the session and keeps the progress line while it runs; prints the table after it."""

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self.config = config
        self.folder = folder
        self.follower: Any = None
        self.compiling: Any = None
        self.ledger = ExitStack()
        self.last_line: Callable[[], str] = str
        self.began = time.monotonic()
        self.stderr = open(os.dup(2), "w")  # noqa: SIM115 - pytest captures descriptor 2 while a test runs

    def pytest_sessionstart(self) -> None:
        """Begins to compile and to follow the records. xdist starts its workers after this."""
        from rich.console import Console

        from fuzz.compiling.cache import CacheError
        from fuzz.ledger.errors import LedgerError
        from fuzz.ledger.ingest.beside import beside
        from fuzz.session.plan import archs, plan, runnable_here
        from fuzz.session.precompile.background_compile import BackgroundCompile
        from fuzz.session.precompile.ready import ReadyShards
        from fuzz.session.records import add_machine, write_session
        from fuzz.session.summary.follow import Follower
        from fuzz.targets.registry import TargetError

        if self.config.option.collectonly:
            return
        settings, ready = _settings(self.config), ReadyShards(self.folder)
        try:
            feeding = beside(self.config.getoption(f"--{PREFIX}ledger"))
            runnable_here(settings)
            shards = plan(settings)
            session = write_session(self.folder, settings)
            add_machine(self.folder, session, archs((shard.target for shard in shards), settings))
            ready.begin()
            self.compiling = BackgroundCompile(settings, shards, ready.add)
            console = Console(file=self.stderr)
            self.follower = Follower(
                self.folder,
                session.skip,
                settings.cases,
                console,
                self.compiling.progress,
                settings.device,
                settings.seconds,
            )
            self.compiling.say = self.follower.line.print
            # Without xdist this process draws the session's cases itself, so it does not draw them in a thread too.
            self.compiling.start(plan_first=not self.config.pluginmanager.hasplugin("dsession"))
        except (CacheError, LedgerError, TargetError, OSError) as error:  # a user's mistake, not an error of pytest's
            raise pytest.UsageError(str(error)) from None
        self.last_line = self.ledger.enter_context(feeding(self.folder))
        self.follower.__enter__()

    def pytest_sessionfinish(self) -> None:
        """Stops compiling and following, also after Ctrl-C."""
        self._stop()

    def pytest_unconfigure(self) -> None:
        """Stops what a session that broke off early has left."""
        self._stop()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Prints the table, the coverage, the findings."""
        from rich.console import Console

        from fuzz.session.summary.report import show

        if self.follower is None:
            return
        terminalreporter.section("attnfuzz session")
        console = Console(file=terminalreporter._tw._file, width=max(terminalreporter._tw.fullwidth, 110))
        settings, spent = _settings(self.config), time.monotonic() - self.began
        show(self.follower.records, spent, console, settings.files, settings.device, ended=self.follower.ended)
        if line := self.last_line():
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        console.print(f"records: {self.folder}", highlight=False)

    def _stop(self) -> None:
        compiling, self.compiling = self.compiling, None
        if compiling is not None:
            compiling.close()
            if self.follower is not None:
                self.follower.__exit__()
                self.ledger.close()


def _settings(config: pytest.Config) -> Any:
    folder = getattr(config, "workerinput", {}).get("attnfuzz_folder") or config.stash.get(_FOLDER, "")
    try:
        return from_options(lambda name: config.getoption(f"--{PREFIX}{name}"), folder=folder)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


def _collects_a_session(config: pytest.Config) -> bool:
    """True where one of the run's arguments is the folder fuzz, or something in it."""
    ours = Path(__file__).parent
    for argument in config.args:
        path = Path(str(argument).split("::")[0]).resolve()
        if path == ours or ours in path.parents:
            return True
    return False
