"""pytest plugin of a night's tests (`-p ci.nightly.passed`): those that passed before a cut are left out, time is
bounded.

$ATTNFUZZ_PASSED names a file of a folder of its own, '<number>.txt'. Ids of tests that pass are added to it as they
end; those in files with smaller numbers are deselected. Every worker of pytest-xdist reads these alone, so that one
which starts late collects the same tests.

$ATTNFUZZ_TESTS_UNTIL is the time (seconds since the epoch) after which no further test begins. Tests that did not begin
are in '<number>.left'. The next night begins with them: files of tests go by the night in which they last passed whole,
as $ATTNFUZZ_NIGHTS, the folder of all nights, has it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

VARIABLE = "ATTNFUZZ_PASSED"
UNTIL = "ATTNFUZZ_TESTS_UNTIL"
NIGHTS = "ATTNFUZZ_NIGHTS"
SKIPPED, LEFT = ".skipped", ".left"  # endings of the files beside


def files(folder: Path) -> list[Path]:
    """The files of the runs so far, the oldest first."""
    return sorted(folder.glob("*.txt"), key=lambda path: int(path.stem))


def names(paths: Sequence[Path]) -> Iterator[str]:
    """The ids in files; a last line that was torn has no end and is none."""
    for path in paths:
        yield from (line[:-1] for line in path.read_text().splitlines(keepends=True) if line.endswith("\n"))


def left(folder: Path, number: int) -> int:
    """The number of tests that run `number` had no time for."""
    path = folder / f"{number}{LEFT}"
    return sum(1 for _ in names([path])) if path.exists() else 0


def last_ended(nights: Path, mine: Path) -> dict[str, float]:
    """When each test last passed or was skipped, by its id, in nights other than that of the file `mine`."""
    paths = [path for ending in (".txt", SKIPPED) for path in nights.glob(f"*/passed/*{ending}")]
    ended: dict[str, float] = {}
    for path in sorted(paths, key=lambda path: path.stat().st_mtime):
        if path.parent != mine.parent:
            ended |= dict.fromkeys(names([path]), path.stat().st_mtime)
    return ended


def in_turn(ids: Sequence[str], ended: Mapping[str, float], workers: int) -> list[int]:
    """The order in which tests run, as numbers of `ids`: files whose tests ended longest ago come first. Each worker
    begins with an equal part of the list, and so with the first files of its own."""
    by_file: dict[str, list[int]] = {}
    for number, one in enumerate(ids):
        by_file.setdefault(one.partition("::")[0], []).append(number)
    ordered = sorted(by_file.values(), key=lambda numbers: min(ended.get(ids[number], 0.0) for number in numbers))
    return [number for worker in range(workers) for numbers in ordered[worker::workers] for number in numbers]


class _Keeps:
    """Adds the tests that pass to a file: in the process that hears of all of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._path.touch()
        self._bad: set[str] = set()
        self._skipped: set[str] = set()
        self._begun: set[str] = set()
        self._collected: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """The tests, where there are no workers."""
        self._collected = self._collected or [item.nodeid for item in session.items]

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """The tests, as a worker has them."""
        self._collected = list(ids)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        self._begun.add(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The test is done when its fixtures are."""
        if report.failed:
            self._bad.add(report.nodeid)
        elif report.skipped:  # asked again after a cut: it takes no time
            self._skipped.add(report.nodeid)
        if report.when == "teardown" and report.nodeid not in self._bad:
            ending = SKIPPED if report.nodeid in self._skipped else ".txt"
            with open(self._path.with_suffix(ending), "a") as file:
                file.write(f"{report.nodeid}\n")

    def pytest_sessionfinish(self) -> None:
        """Says which tests did not begin."""
        if rest := [one for one in self._collected if one not in self._begun]:
            self._path.with_suffix(LEFT).write_text("".join(f"{one}\n" for one in rest))


def pytest_configure(config: pytest.Config) -> None:
    """The controller, or the one process, writes."""
    if (named := os.environ.get(VARIABLE)) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Keeps(Path(named)))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what has passed, and puts first what ended longest ago."""
    if not (named := os.environ.get(VARIABLE)):
        return
    mine = Path(named)
    before = set(names([path for path in files(mine.parent) if int(path.stem) < int(mine.stem)]))
    gone = [item for item in items if item.nodeid in before]
    if gone:
        config.hook.pytest_deselected(items=gone)
        items[:] = [item for item in items if item.nodeid not in before]
    if nights := os.environ.get(NIGHTS):
        workers = int(getattr(config, "workerinput", {}).get("workercount", 1))
        order = in_turn([item.nodeid for item in items], last_ended(Path(nights), mine), workers)
        items[:] = [items[number] for number in order]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol() -> bool | None:
    """Nothing more begins once the time is up: the test has no report, and is among those that are left."""
    return True if time.time() > float(os.environ.get(UNTIL, "inf")) else None
