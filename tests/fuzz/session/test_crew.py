"""fuzz/session/crew.py: settling ends with the session's time; the core of a worker."""

from __future__ import annotations

import signal
import time

import pytest

from fuzz.session import crew


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


def test_workers_of_a_gpu_have_a_core_each_where_there_are_enough(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {3, 5, 8})
    assert [crew.own_core("cuda", 3, f"w{n}") for n in range(5)] == [3, 5, 8, 3, 5]  # w3 takes the place of a dead one
    assert crew.own_core("cuda", 4, "w0") is None
    assert crew.own_core("host", 3, "w0") is None
    assert crew.own_core("emulator", 3, "w0") is None
