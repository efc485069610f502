"""fuzz/session/cores.py: a core for each worker of a GPU's session, over all sessions of the machine."""

from __future__ import annotations

import multiprocessing
import os

import pytest

from fuzz.session import cores

FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def kept_by_another(core, pipe):
    pipe.send(cores.keep_to(core))
    pipe.recv()


def test_workers_of_a_gpu_have_a_core_each_where_there_are_enough(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {3, 5, 8})
    assert [cores.own_core("cuda", 3, f"w{n}") for n in range(5)] == [3, 5, 8, 3, 5]  # w3 takes the place of a dead one
    assert cores.own_core("cuda", 4, "w0") is None
    assert cores.own_core("host", 3, "w0") is None
    assert cores.own_core("emulator", 3, "w0") is None


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_workers_of_two_sessions_keep_to_different_cores_until_one_ends():
    every = sorted(os.sched_getaffinity(0))
    ours, theirs = FORK.Pipe()
    started = []
    for _ in every:
        process = FORK.Process(target=kept_by_another, args=(every[0], theirs))
        process.start()
        started.append((process, ours.recv()))
    assert [core for _, core in started] == every
    late = FORK.Process(target=kept_by_another, args=(every[0], theirs))
    late.start()
    assert ours.recv() is None  # all are taken
    started[1][0].kill()
    started[1][0].join()
    next_one = FORK.Process(target=kept_by_another, args=(every[0], theirs))
    next_one.start()
    assert ours.recv() == every[1]
    for process in (late, next_one, *(p for p, _ in started)):
        process.kill()
        process.join()


def test_a_worker_keeps_to_its_core_where_there_can_be_no_lock(monkeypatch, tmp_path):
    kept = []
    monkeypatch.setattr("os.sched_setaffinity", lambda pid, cores: kept.append(cores))
    (tmp_path / f"attnfuzz-cores-{os.getuid()}").write_text("no folder")
    core = min(os.sched_getaffinity(0))
    assert cores.keep_to(core) == core
    assert kept == [{core}]
