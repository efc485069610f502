"""Leaks within a case, memory that grows with the square of the length, compiles per shape."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import warm_start
from judge_tools import FAKES, PLAIN, judge
from msgspec.structs import replace

from fuzz.core.case import Case
from fuzz.core.target import Target
from fuzz.judging import leaks as resources
from fuzz.targets.blocksparse.devices import emulator_there
from fuzz.targets.registry import load
from oracles.masks import Full
from oracles.resources import Usage, growth, leaks


@pytest.mark.parametrize(
    ("name", "what"),
    [("leaks_files", "files"), ("leaks_processes", "processes"), ("leaks_threads", "threads"), ("leaks", "host_bytes")],
)
def test_what_each_run_takes_and_keeps_is_a_leak(name, what):
    found = judge(f"fake.{name}", repeats=1)
    assert found.outcome == "fail", found
    assert what in {f.place.pattern for f in found.findings if (f.oracle, f.kind) == ("resources", "leak")}


def test_a_cache_that_the_first_run_fills_is_no_leak():
    assert judge("fake.fills_a_cache").outcome == "pass"


def test_an_honest_target_is_watched_and_passes():
    judge("fake.honest")  # the first case of a process starts the thread that loads a core
    watch = resources.Watch.start(_cpu())
    assert [judge("fake.honest").outcome for _ in range(3)] == ["pass"] * 3
    assert not watch.suspects()


def test_further_runs_end_with_one_that_leaves_nothing_behind():
    kept: list[torch.Tensor] = []
    watch = resources.Watch.start(_cpu())
    assert watch.leaks(lambda: kept.append(torch.ones(4 << 20))) != [] and len(kept) == resources.RUNS
    runs: list[int] = []
    assert watch.leaks(lambda: runs.append(1)) == [] and len(runs) == 2


def test_only_what_grows_every_time_is_a_leak():
    files = [3, 9, 10, 11, 12]
    assert [f.place.pattern for f in leaks([Usage(files=n) for n in files])] == ["files"]
    assert leaks([Usage(files=n) for n in (3, 9, 10, 10, 12)]) == []
    assert leaks([Usage(host_bytes=n) for n in (0, 0, 100, 200, 300)]) == []  # too little for a tensor
    with pytest.raises(ValueError, match="usages: needs those of at least three runs, got 1"):
        leaks([Usage(), Usage()])


def test_growth_is_an_exponent():
    assert growth({1024: 1 << 20, 2048: 2 << 20, 4096: 4 << 20}) == []
    (found,) = growth({1024: 1 << 20, 2048: 4 << 20, 4096: 16 << 20})
    assert found.kind == "memory_growth" and found.numbers["exponent"] == pytest.approx(2)
    assert growth({1024: 10, 2048: 40}) == []  # bytes, not tensors


GROWTH = """
import sys
from fuzz.core.case import Case
from fuzz.judging import leaks as resources
from fuzz.targets.registry import load
from oracles.masks import Full
from oracles.problem import Problem
problem = Problem((64,), (64,), 1, 1, 16, 16, "float32", mask=Full(), backward=False)
name = sys.argv[1]
print(len(resources.memory_growth(load(name, tuple(sys.argv[2:])), Case(name, problem), (1024, 2048, 4096))))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux only")
@pytest.mark.parametrize(("name", "findings"), [("torch.sdpa.flash", 0), ("torch.sdpa.math", 1)])
def test_memory_that_grows_with_the_square_of_the_length_is_found(name, findings):
    """In a process of its own: what others have freed hides what is taken."""
    ran = warm_start.run(["-c", GROWTH, name])
    assert ran.stdout == f"{findings}\n", ran.stderr


SCORES = """
import sys
from fuzz.judging import leaks as resources
from fuzz.core.case import Case, Inputs
from fuzz.targets.registry import load
from oracles.masks import Window
from oracles.problem import Problem
problem = Problem((64,), (64,), 1, 1, 64, 64, "bfloat16", mask=Window(64, 0), backward=False)
case = Case(sys.argv[1], problem, Inputs(), {"tile_m": 128, "tile_n": 64, "deterministic": False})
print(len(resources.memory_growth(load(sys.argv[1]), case, (256, 2048, 4096))))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux only")
@pytest.mark.skipif(not emulator_there() or load("blocksparse").missing() is not None, reason="needs the emulated GPU")
@pytest.mark.nightly
@pytest.mark.parametrize(("name", "findings"), [("blocksparse", 0), ("blocksparse!scores_allocated", 1)])
def test_room_for_all_scores_is_growth_with_the_square(name, findings):
    """On the emulated GPU, whose own memory grows with the length; the first length has it ready."""
    ran = subprocess.run([sys.executable, "-c", SCORES, name], capture_output=True, text=True, timeout=300, check=True)
    assert int(ran.stdout) == findings


class Compiling(Target):
    """Counts a compile for each new key of its own."""

    def __init__(self, key) -> None:
        self._target = load("fake.honest", FAKES)
        self.device, self._key, self._known = "host", key, set()

    def prepare(self, case, tensors) -> None:
        self._known.add(self._key(case))

    def run(self, case, tensors):
        return self._target.run(case, tensors)

    def compiled(self) -> int:
        return len(self._known)


def test_a_compile_per_shape_is_found_and_one_per_variant_is_not():
    cases = [Case("fake.honest", replace(PLAIN, lengths_q=(n,), lengths_k=(n,), mask=Full())) for n in (5, 9, 17, 30)]
    (found,) = resources.compiles(Compiling(lambda c: c.problem.lengths_q), cases)
    assert found.kind == "compiles" and found.numbers == {"compiles": 4.0, "variants": 1.0}
    assert resources.compiles(Compiling(lambda c: c.problem.dim), cases) == []
    assert resources.compiles(copy.copy(load("fake.honest", FAKES)), cases) == []  # counts nothing


def _cpu() -> torch.device:
    return torch.device("cpu")
