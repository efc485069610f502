"""fuzz/session/crew.py: settling ends with the session's time, in which shards have slices."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from multiprocessing import Pipe
from typing import cast

import pytest

from fuzz.session import crew
from fuzz.session.plan import Shard
from fuzz.session.settings import Settings
from fuzz.session.shard_pipe import TICK, ShardWriter, take
from fuzz.session.worker import Worker


def test_what_is_settled_past_the_sessions_time_is_interrupted() -> None:
    before = signal.getsignal(signal.SIGALRM)
    began = time.monotonic()
    try:
        crew._interrupt_after(0.2)
        with pytest.raises(KeyboardInterrupt):
            time.sleep(30)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - began < 5


class _Settled:
    """A worker without a case, of which settling takes no time."""

    def __init__(self, *given: object) -> None:
        pass

    def __enter__(self) -> _Settled:
        return self

    def __exit__(self, *given: object) -> None:
        pass

    def late(self) -> bool:
        return True

    def settle(self) -> None:
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0


class _Compiling(_Settled):
    """A worker with a case that takes long."""

    def left_of(self, shard: object) -> int:
        return 1

    def run_shard(self, shard: object, seconds: float | None) -> None:
        time.sleep(60)

    def settle(self) -> None:
        raise AssertionError("settles after the session's time")


def _ended(worker: type, monkeypatch: pytest.MonkeyPatch, ends: float, shards: list[object]) -> int:
    """Exit code of a worker that is given these shards."""
    for name in ("die_with_parent", "interrupt_once", "ready"):
        monkeypatch.setattr(crew, name, lambda: None)
    monkeypatch.setattr(crew, "Worker", worker)
    monkeypatch.setattr(crew, "take", lambda reading, late, waits: shards.pop() if shards else None)
    before = [(number, signal.getsignal(number)) for number in (signal.SIGALRM, signal.SIGTERM)]
    try:
        with pytest.raises(SystemExit) as ended:
            crew._work(Settings(targets=("sdpa",)), "w0", {}, ends, Pipe(duplex=False)[0], None, None)
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before:
            signal.signal(number, handler)
    return int(ended.value.code or 0)


def test_a_case_that_runs_long_after_the_sessions_time_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "LAST", 0.2)
    began = time.monotonic()
    assert _ended(_Compiling, monkeypatch, began, [None, object()]) == 0
    assert time.monotonic() - began < 10


def test_a_worker_that_has_settled_is_not_interrupted_as_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _ended(_Settled, monkeypatch, time.monotonic() + 60, []) == 0


class _Slices:
    """A worker whose every slice runs two cases, and none of `stuck`."""

    def __init__(self, stuck: str = "") -> None:
        self.ran: list[str] = []
        self.stuck = stuck

    def late(self) -> bool:
        return len(self.ran) > 20

    def left_of(self, shard: Shard) -> int:
        return max(0, shard.cases - 2 * self.ran.count(shard.name) * (shard.target != self.stuck))

    def run_shard(self, shard: Shard, seconds: float | None) -> None:
        self.ran.append(shard.name)


@pytest.fixture
def run_in_slices(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """The shards that a worker runs of those that it takes, one after the other."""

    def run(worker: _Slices, shards: list[Shard], seconds: float | None) -> list[str]:
        waiting = list(shards)
        monkeypatch.setattr(crew, "take", lambda reading, late, waits: waiting.pop(0) if waiting else None)
        crew.run_shards(cast(Worker, worker), Pipe(duplex=False)[0], seconds)
        return worker.ran

    return run


def test_shards_have_slices_and_what_is_left_comes_after_the_others(run_in_slices: Callable[..., list[str]]) -> None:
    shards = [Shard("dear", 0, 5, 0), Shard("quick", 0, 2, 0), Shard("dear", 1, 3, 0)]
    ran = run_in_slices(_Slices(), shards, 1.0)
    assert ran == ["dear-0", "quick-0", "dear-1", "dear-0", "dear-1", "dear-0"]


def test_a_slice_that_ends_no_case_is_the_shards_last(run_in_slices: Callable[..., list[str]]) -> None:
    shards = [Shard("stuck", 0, 5, 0), Shard("quick", 0, 3, 0)]
    assert run_in_slices(_Slices("stuck"), shards, 1.0) == ["stuck-0", "quick-0", "quick-0"]


def test_a_session_without_a_time_limit_has_no_slices(run_in_slices: Callable[..., list[str]]) -> None:
    assert run_in_slices(_Slices(), [Shard("dear", 0, 5, 0), Shard("quick", 0, 2, 0)], None) == ["dear-0", "quick-0"]
    assert crew.slice_of(Settings(targets=("sdpa",))) is None


@pytest.mark.parametrize(("seconds", "slice_"), [(1, 10), (200, 20), (3600, 60)])
def test_a_slice_is_a_tenth_of_the_session_within_limits(seconds: float, slice_: float) -> None:
    assert crew.slice_of(Settings(targets=("sdpa",), seconds=seconds)) == slice_


def test_a_worker_with_a_shard_in_hand_does_not_wait_for_others() -> None:
    """The pipe stays open: kernels are compiled for what is to come."""
    reading, writing = Pipe(duplex=False)
    began = time.monotonic()
    assert take(reading, waits=False) is None and time.monotonic() - began < TICK / 2
    pipe = ShardWriter(writing)
    pipe.put(Shard("quick", 0, 2, 0))
    while (found := take(reading, waits=False)) is None:
        assert time.monotonic() - began < 10
    assert found == Shard("quick", 0, 2, 0)
    pipe.close()
