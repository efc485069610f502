"""The session as a pytest run: options, shards as items, progress line, table at the end.

Every xdist worker runs its shards with one persistent child; records go to files, and the controller follows those. The
plugin does nothing in a pytest run that collects no shard.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of a session; each has the prefix --fuzz."""
    group = parser.getgroup("attnfuzz", "attnfuzz sessions (pytest fuzz)")
    add = group.addoption
    add("--fuzz-cases", type=int, default=300, metavar="N", help="cases of the session, over all targets (300)")
    add(
        "--fuzz-seed",
        type=int,
        default=0,
        metavar="S",
        help="seed of the session; the same seed draws the same cases (0)",
    )
    add("--fuzz-targets", default="", metavar="A,B", help="targets by name (all that can run here)")
    add(
        "--fuzz-target-file", action="append", default=[], metavar="FILE", help="a Python file with targets of your own"
    )
    add("--fuzz-device", choices=("host", "cuda"), help="where kernels run (cuda where there is a GPU, else host)")
    add("--fuzz-size", default="medium", choices=("small", "medium", "large"), help="sizes of the cases (medium)")
    add("--fuzz-repeats", type=int, default=3, metavar="R", help="runs of each case that must agree bit for bit (3)")
    add(
        "--fuzz-repeats-deterministic", type=int, default=0, metavar="R", help="of cases that promise the same bits (3)"
    )
    add(
        "--fuzz-corpus",
        default="corpus/regressions",
        metavar="DIR",
        help="known failures, and where new ones are saved",
    )
    add("--fuzz-folder", default="", metavar="DIR", help="the session's records (.attnfuzz/sessions/<time>)")


def pytest_configure(config: pytest.Config) -> None:
    """The controller chooses the session's folder; workers are told."""
    if not _wanted(config):
        return
    from fuzz.session.pool import new_folder

    folder = config.getoption("--fuzz-folder") or new_folder()
    if not hasattr(config, "workerinput"):
        config.stash[_FOLDER] = folder
        config.pluginmanager.register(_Controller(config, Path(folder)), "attnfuzz-controller")
    if config.pluginmanager.hasplugin("xdist") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Handover(folder), "attnfuzz-handover")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Shards as parameters."""
    if "attnfuzz_shard" in metafunc.fixturenames:
        from fuzz.session.plan import plan

        shards = plan(_settings(metafunc.config))
        metafunc.parametrize("attnfuzz_shard", shards, ids=[shard.name for shard in shards])


@pytest.fixture(scope="session")
def attnfuzz_worker(request: pytest.FixtureRequest) -> Iterator[Any]:
    """This process's Worker: one child for all its shards."""
    from fuzz.session.worker import Worker

    name = getattr(request.config, "workerinput", {}).get("workerid", "main")
    with Worker(_settings(request.config), name) as worker:
        yield worker


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A shard has no time-out of its own from pytest-timeout but a very long one: the runner's deadlines are the
    guard."""
    for item in items:
        if "attnfuzz_shard" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(3600))


_FOLDER: pytest.StashKey[str] = pytest.StashKey()


class _Handover:
    """Tells each xdist worker the session's folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Called by xdist for every worker."""
        node.workerinput["attnfuzz_folder"] = self.folder


class _Controller:
    """The progress line while the session runs, the table after it."""

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self.config = config
        self.folder = folder
        self.progress: Any = None
        self.began = time.monotonic()

    def pytest_sessionstart(self) -> None:
        """Compiles what the session needs, then starts following the records. xdist starts its workers after this."""
        from hypothesis.errors import HypothesisWarning
        from rich.console import Console

        from fuzz.compiling.cache import CacheError
        from fuzz.session.plan import runnable_here
        from fuzz.session.precompile import compile_ahead
        from fuzz.session.records import write_session
        from fuzz.session.report import Progress
        from fuzz.targets.registry import TargetError

        if self.config.option.collectonly:
            return
        settings = _settings(self.config)
        stream = sys.__stderr__ or sys.stderr
        with warnings.catch_warnings():  # of strategies that are used before pytest's session has begun: meant here
            warnings.simplefilter("ignore", HypothesisWarning)
            try:
                runnable_here(settings)
                write_session(self.folder, settings)
                compile_ahead(settings, Console(file=stream))
            except (CacheError, TargetError, OSError) as error:  # a user's mistake, not an error of pytest's
                raise pytest.UsageError(str(error)) from None
        self.progress = Progress(self.folder, settings.cases, stream)
        self.progress.__enter__()

    def pytest_sessionfinish(self) -> None:
        """Stops following."""
        if self.progress is not None:
            self.progress.__exit__()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """The table, the coverage, the findings."""
        from rich.console import Console

        from fuzz.session.report import show

        if self.progress is None:
            return
        terminalreporter.section("attnfuzz session")
        console = Console(file=terminalreporter._tw._file, width=max(terminalreporter._tw.fullwidth, 110))
        show(self.progress.tally.records, time.monotonic() - self.began, console, _settings(self.config).files)
        console.print(f"records: {self.folder}", highlight=False)


def _settings(config: pytest.Config) -> Any:
    from fuzz.session.settings import Settings

    option = config.getoption
    folder = getattr(config, "workerinput", {}).get("attnfuzz_folder") or config.stash.get(_FOLDER, "")
    return Settings(
        targets=tuple(name for name in option("--fuzz-targets").split(",") if name),
        device=option("--fuzz-device") or _default_device(),
        cases=option("--fuzz-cases"),
        seed=option("--fuzz-seed"),
        size=option("--fuzz-size"),
        repeats=option("--fuzz-repeats"),
        repeats_deterministic=option("--fuzz-repeats-deterministic"),
        files=tuple(os.path.abspath(file) for file in option("--fuzz-target-file")),
        corpus=option("--fuzz-corpus"),
        folder=folder,
    )


def _default_device() -> Any:
    from fuzz.targets.autograd import default_device

    return default_device()


def _wanted(config: pytest.Config) -> bool:
    """Whether this run collects the session: one of its arguments is the folder fuzz, or something in it."""
    ours = Path(__file__).parent
    for argument in config.args:
        path = Path(str(argument).split("::")[0]).resolve()
        if path == ours or ours in path.parents:
            return True
    return False
