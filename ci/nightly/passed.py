"""pytest plugin of a night's tests (`-p ci.nightly.passed`): what passed before the night was cut off is not run again.

$ATTNFUZZ_PASSED names a file of a folder of its own, '<number>.txt'. Ids of tests that pass are added to it as they
end; those in files with smaller numbers are deselected. Every worker of pytest-xdist reads these alone, so that one
which starts late collects the same tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

VARIABLE = "ATTNFUZZ_PASSED"


def files(folder: Path) -> list[Path]:
    """The files of the runs so far, the oldest first."""
    return sorted(folder.glob("*.txt"), key=lambda path: int(path.stem))


def names(paths: list[Path]) -> Iterator[str]:
    """The ids in files; a last line that was torn has no end and is none."""
    for path in paths:
        yield from (line[:-1] for line in path.read_text().splitlines(keepends=True) if line.endswith("\n"))


class _Keeps:
    """Adds the tests that pass to a file: in the process that hears of all of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._path.touch()
        self._bad: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The test is done when its fixtures are."""
        if not report.passed:
            self._bad.add(report.nodeid)  # skipped ones are asked again: it takes no time
        elif report.when == "teardown" and report.nodeid not in self._bad:
            with open(self._path, "a") as file:
                file.write(f"{report.nodeid}\n")


def pytest_configure(config: pytest.Config) -> None:
    """The controller, or the one process, writes."""
    if (named := os.environ.get(VARIABLE)) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Keeps(Path(named)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what has passed."""
    if not (named := os.environ.get(VARIABLE)):
        return
    mine = Path(named)
    before = set(names([path for path in files(mine.parent) if int(path.stem) < int(mine.stem)]))
    gone = [item for item in items if item.nodeid in before]
    if gone:
        config.hook.pytest_deselected(items=gone)
        items[:] = [item for item in items if item.nodeid not in before]
