"""fuzz/session/crew.py: settling ends with the session's time."""

from __future__ import annotations

import signal
import time
from multiprocessing import Pipe

import pytest

from fuzz.session import crew
from fuzz.session.settings import Settings


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

    def run_shard(self, shard: object) -> None:
        time.sleep(60)

    def settle(self) -> None:
        raise AssertionError("settles after the session's time")


def _ended(worker: type, monkeypatch: pytest.MonkeyPatch, ends: float, shards: list[object]) -> int:
    """Exit code of a worker that is given these shards."""
    for name in ("die_with_parent", "interrupt_once", "ready"):
        monkeypatch.setattr(crew, name, lambda: None)
    monkeypatch.setattr(crew, "Worker", worker)
    monkeypatch.setattr(crew, "take", lambda reading, late: shards.pop() if shards else None)
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
