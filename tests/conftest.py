"""Settings of every test: one thread for each process, shared compiled kernels, and an order that avoids waiting.

Compiling a kernel costs seconds. The artifact cache builds each key once however many workers ask for it, and its keys
know their sources, so the folder is kept from one run to the next. Compiling the emulated GPU's own code costs one core
about 100 seconds after a change of its sources: one process does that beside the first tests, and the tests that run
kernels on it come last.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import warm_start
from compiled_triton import mode_kept, send_away

from fuzz.process import fork_server
from fuzz.process.imports import freeze, importing

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["ATTNFUZZ_LEDGER"] = "none"  # sessions of tests are in no ledger, but where a test says so
os.environ["ATTNFUZZ_CACHE"] = str(Path(__file__).resolve().parents[1] / ".attnfuzz" / "test-cache")

EMULATED = (
    "tests/ci/test_race_suites",
    "tests/docs/test_cuda_page",
    "tests/fuzz/cli/test_repro_trace",
    "tests/fuzz/cli/test_sanitize",
    "tests/fuzz/devices/emulator",
    "tests/fuzz/judging/test_cta_subset",
    "tests/fuzz/judging/test_planted",
    "tests/fuzz/process/test_triton_mode",
    "tests/fuzz/score",
    "tests/fuzz/script/test_emulated_script",
    "tests/fuzz/session",
    "tests/fuzz/targets/blocksparse",
    "tests/kernels/blocksparse",
    "tests/kernels/mutants",
)
START = fork_server.start
COMPILES = "from fuzz.devices.emulator.execute.interpreter import ready; ready()"


def pytest_sessionstart(session: pytest.Session) -> None:
    """The controller of several workers has the emulator's code compiled, unless it is there."""
    workers = getattr(session.config.option, "tx", None)
    if hasattr(session.config, "workerinput") or not workers or session.config.option.collectonly:
        return
    if find_spec("numba") and find_spec("llvmlite"):
        root = Path(__file__).resolve().parents[1]
        quiet = subprocess.DEVNULL
        subprocess.Popen([sys.executable, "-c", COMPILES], cwd=root, stdin=quiet, stdout=quiet, stderr=quiet)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Garbage is looked for neither while the tests are collected nor, later, among them and their modules."""
    with importing():
        collected = yield
    freeze()
    return collected


def pytest_unconfigure() -> None:
    """At the end all is collected: nanobind, which CUTLASS uses, prints what never is, as leaks."""
    gc.unfreeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each worker's share begins with tests that need no emulated GPU: xdist deals out consecutive tests at first. The
    shares are of what is left after -m and -k."""
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    late = [item for item in items if item.nodeid.startswith(EMULATED)]
    early = [item for item in items if not item.nodeid.startswith(EMULATED)]
    items[:] = [item for i in range(workers) for part in (early, late) for item in _share(part, i, workers)]
    send_away(items)


@pytest.fixture(autouse=True, scope="session")
def _warm_servers() -> Iterator[None]:
    """Runners and compile pools of the tests' own process have servers that are forks: see tests/support/warm_start."""
    with pytest.MonkeyPatch.context() as patch:
        if warm_start.POSSIBLE:
            patch.setattr(fork_server, "start", warm_start.start)
        yield


@pytest.fixture(autouse=True)
def _triton_mode() -> Iterator[None]:
    with mode_kept():
        yield


@pytest.fixture
def fresh_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a test of the start itself: servers are fresh processes, as users have them."""
    monkeypatch.setattr(fork_server, "start", START)


def _share(items: list[pytest.Item], index: int, count: int) -> list[pytest.Item]:
    return items[len(items) * index // count : len(items) * (index + 1) // count]
