"""`pytest corpus`: every saved case is a test of its own, named by its file.

A case of corpus/must_pass has no target of its own and is a test per target that runs here (or per --corpus-target).
One Runner per worker process runs them, so that a hang or a crash costs one test. What a target cannot take is skipped
with the reason, and so are big cases on a CPU, unless --corpus-all is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fuzz.core.case import to_json
from fuzz.core.verdict import summary
from fuzz.corpus.conformance import skipped
from fuzz.corpus.entry import ANY_TARGET, CorpusError, Entry
from fuzz.corpus.replay import Replay, replay
from fuzz.corpus.store import is_entry, load
from fuzz.runner import Runner
from fuzz.targets.autograd import default_device
from fuzz.targets.registry import TargetError, targets
from fuzz.targets.registry import load as load_target

_RUNNER: pytest.StashKey[Runner] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of `pytest corpus`."""
    group = parser.getgroup("attnfuzz corpus", "attnfuzz corpus (pytest corpus)")
    group.addoption("--corpus-all", action="store_true", help="also the big cases, which take minutes each on a CPU")
    group.addoption(
        "--corpus-target",
        action="append",
        default=[],
        metavar="NAME",
        help="run must-pass cases on this target (may be given again; default: every one that runs here)",
    )
    group.addoption(
        "--corpus-target-file",
        action="append",
        default=[],
        metavar="FILE",
        help="a Python file with targets of your own",
    )


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A collector per JSON file."""
    if is_entry(file_path):
        return CorpusFile.from_parent(parent, path=file_path)
    return None


def pytest_unconfigure(config: pytest.Config) -> None:
    """Ends this worker's child."""
    runner = config.stash.get(_RUNNER, None)
    if runner is not None:
        runner.close()


class CorpusFile(pytest.File):
    """One file of the corpus: one test, or one per target."""

    def collect(self) -> Iterator[pytest.Item]:
        """Tests of the file; a file that cannot be read is an error that names the field."""
        try:
            entry = load(self.path)
        except CorpusError as error:
            raise self.CollectError(str(error)) from None
        if entry.case.target != ANY_TARGET:
            yield CorpusItem.from_parent(self, name=self.path.stem, entry=entry)
            return
        for name in _targets(self.config, entry.case.problem.op):
            case = msgspec.structs.replace(entry.case, target=name)
            mine = msgspec.structs.replace(entry, case=case)
            yield CorpusItem.from_parent(self, name=f"{self.path.stem}[{name}]", entry=mine)


class CorpusItem(pytest.Item):
    """The replay of one case on one target."""

    def __init__(self, *, entry: Entry, **others: Any) -> None:
        super().__init__(**others)
        self.entry = entry

    def runtest(self) -> None:
        """Replays the case, unless the target is not here or does not take it."""
        config, case = self.config, self.entry.case
        device = default_device()
        try:
            target = load_target(case.target, _files(config), device)
        except TargetError as error:
            pytest.skip(str(error))
        if (why := target.missing()) is not None:
            pytest.skip(f"{case.target} cannot run here: {why}")
        if (skip := skipped(target, case, config.getoption("--corpus-all") or device == "cuda")) is not None:
            pytest.skip(f"{skip[0]}: {skip[1]}")
        found = self.entry.found
        if self.entry.expect != "pass" and found is not None and found.device not in ("", device):
            pytest.skip(f"found on {found.device}, and replayed there only")
        replayed = replay(self.entry, _runner(config).run)
        if replayed.status == "skip":
            pytest.skip(replayed.reason)
        if not replayed.ok:
            raise _Failed(replayed)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The verdict and the file, instead of a traceback."""
        if not isinstance(excinfo.value, _Failed):
            return super().repr_failure(excinfo, style)
        found = excinfo.value.replayed
        lines = [f"{self.path}: {found.status}: {found.reason}"]
        if found.verdict is not None:
            lines += [f"    {f.oracle}: {f.kind} {f.tensor}: {f.message}" for f in found.verdict.findings]
            lines.append(summary(found.verdict))
        return "\n".join([*lines, to_json(self.entry.case)])

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where the test comes from."""
        return self.path, None, self.name


class _Failed(Exception):
    def __init__(self, replayed: Replay) -> None:
        super().__init__(replayed.reason)
        self.replayed = replayed


def _files(config: pytest.Config) -> tuple[str, ...]:
    return tuple(str(Path(file).resolve()) for file in config.getoption("--corpus-target-file"))


def _targets(config: pytest.Config, operation: str) -> list[str]:
    """The targets of the must-pass list: those asked for, else those of the operation that run here."""
    listed = targets(_files(config), default_device())
    here = [name for name, one in listed.items() if one.operation == operation and one.missing() is None]
    return config.getoption("--corpus-target") or here


def _runner(config: pytest.Config) -> Runner:
    """This process's Runner, made on first use."""
    if _RUNNER not in config.stash:
        device = "cuda:0" if default_device() == "cuda" else "host"
        config.stash[_RUNNER] = Runner(device, files=_files(config))
    return config.stash[_RUNNER]
