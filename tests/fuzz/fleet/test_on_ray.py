"""Fleets on a real Ray cluster of two nodes on this machine. Each costs a minute: nightly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from runner_tools import FAKES

from fuzz.session.plan import plan
from fuzz.session.records import settlement
from fuzz.session.resume import read_session

pytest.importorskip("ray")
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
STORE = 96 << 20
FILES = [part for file in FAKES for part in ("--target-file", file)]


def command(folder: Path, *more: str) -> list[str]:
    places = ["--output-dir", str(folder), "--ledger", "none", "--corpus", "", "--device", "host", "--size", "small"]
    return [sys.executable, "-m", "fuzz.cli.main", "fleet", *FILES, *places, *more]


@contextmanager
def two_nodes(gpus: int = 0, **variables: str) -> Iterator[str]:
    """The address of a cluster; the second node has more variables of the environment. gpus: of each node, in Ray's
    books only."""
    from ray.cluster_utils import Cluster

    made: dict[str, Any] = {"num_cpus": 1, "num_gpus": gpus, "object_store_memory": STORE}
    cluster = Cluster(initialize_head=True, head_node_args=made | {"include_dashboard": False})
    try:
        cluster.add_node(**made, env_vars=variables)
        yield cluster.address
    finally:
        cluster.shutdown()


def check(folder: Path) -> list[str]:
    """Every case of the session is on record, once; names of the workers that ran them."""
    kept = read_session(folder)
    wanted = {(shard.name, index) for shard in plan(kept.settings) for index in range(shard.cases)}
    there = [(one.shard, one.index) for one in kept.records]
    assert len(there) == len(set(there)) and set(there) == wanted
    return sorted(Counter(one.worker for one in kept.records))


def test_a_node_that_is_killed_costs_no_case(tmp_path: Path) -> None:
    """And its verdicts are those of one machine: the script compares them."""
    script = [sys.executable, "ci/benchmarks/fleet.py", "--cases", "200", "--out", str(tmp_path / "out.json")]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_device_that_breaks_is_drained_and_its_last_cases_run_elsewhere(tmp_path: Path) -> None:
    asked = ["--target", "fake.honest", "--cases", "200", "--health-target", "fake.breaks"]
    with two_nodes(FAKE_BREAKS_AFTER="24") as address:  # two cases of three repeats each make a check
        done = subprocess.run(
            command(tmp_path / "s", *asked, "--address", address), cwd=ROOT, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "was drained: a wrong answer to the health check: fail: O is wrong" in done.stdout, done.stdout
    assert len(check(tmp_path / "s")) == 2
    assert settlement(tmp_path / "s").settled == []


def test_a_gpu_that_breaks_is_drained_for_all_workers_that_share_it(tmp_path: Path) -> None:
    from rich.console import Console

    from fuzz.fleet.cluster import RayCluster
    from fuzz.fleet.crew import FleetCrew
    from fuzz.fleet.member import Options
    from fuzz.session.pool import run_session
    from fuzz.session.settings import Settings

    settings = Settings(("fake.honest",), cases=300, size="small", files=FAKES, corpus="", folder=str(tmp_path / "s"))
    crews: list[FleetCrew] = []
    with two_nodes(1, FAKE_BREAKS_AFTER="12") as address, RayCluster(address, gpu=True, share=2) as cluster:
        assert len(cluster.slots()) == 4

        def hire(*given: Any) -> FleetCrew:
            crews.append(FleetCrew(cluster, Options("fake.breaks"), *given))
            return crews[0]

        ended = run_session(settings, None, Console(stderr=True), hire=hire)
    assert not ended.problems and not ended.new
    check(tmp_path / "s")
    (line,) = crews[0].replaced
    assert "GPU 0 was drained: a wrong answer to the health check" in line and len(crews[0]._drained) == 1


def test_a_fleet_that_is_interrupted_goes_on_where_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    begun = subprocess.Popen(
        command(folder, "--target", "fake.honest", "--cases", "400"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"RAY_DISABLE_MEMORY_MONITOR": "1"},
    )
    until = time.monotonic() + 300
    while not any(path.stat().st_size for path in folder.glob("records-*.jsonl")) and time.monotonic() < until:
        time.sleep(0.1)
    begun.send_signal(signal.SIGINT)
    said, _ = begun.communicate(timeout=120)
    assert begun.returncode == 130 and f"go on: attnfuzz fleet --resume {folder}" in said, said
    before = len(read_session(folder).records)
    assert 0 < before < 400
    resumed = [sys.executable, "-m", "fuzz.cli.main", "fleet", "--resume", str(folder), "--ledger", "none"]
    done = subprocess.run(resumed, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{before} cases before" in done.stdout
    check(folder)


def test_kernels_are_compiled_on_the_cluster_and_cached_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy: Any
) -> None:
    import ray

    from fuzz.compiling.cache import Cache
    from fuzz.fleet.cluster import RayCluster
    from fuzz.fleet.compiling import FleetPool
    from fuzz.fleet.kernels import Kernel

    recipes = ROOT / "tests" / "fakes" / "recipes"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(recipes)]))
    monkeypatch.setenv("ATTNFUZZ_CACHE", str(tmp_path / "nodes"))
    sent: list[Kernel] = []
    builds = [toy("add", value=1), toy("add", value=2), toy("raises")]
    with two_nodes() as address:
        monkeypatch.setenv("ATTNFUZZ_CACHE", str(tmp_path / "here"))
        with RayCluster(address, gpu=False) as cluster, FleetPool(cluster.compilers(), sent.append) as pool:
            assert pool.jobs == 2
            ended = {one.build: one for one in pool.build(builds)}
        assert not ray.is_initialized()
    assert [ended[build].status for build in builds] == ["built", "built", "failed"]
    assert {kernel.build for kernel in sent} == set(builds[:2])
    assert all(Cache().load(build) is not None for build in builds[:2])
    assert len(list((tmp_path / "nodes" / "artifacts").iterdir())) == 2
