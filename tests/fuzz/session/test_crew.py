"""fuzz/session/crew.py: settling ends with the session's time."""

from __future__ import annotations

import signal
import time

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


def test_a_worker_that_has_settled_is_not_interrupted_as_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("die_with_parent", "interrupt_once", "ready"):
        monkeypatch.setattr(crew, name, lambda: None)
    monkeypatch.setattr(crew, "Worker", _Settled)
    monkeypatch.setattr(crew, "take", lambda reading, late: None)
    before = [(number, signal.getsignal(number)) for number in (signal.SIGALRM, signal.SIGTERM)]
    try:
        with pytest.raises(SystemExit) as ended:
            crew._work(Settings(targets=("sdpa",)), "w0", None, time.monotonic() + 60, None, None, None)  # type: ignore[arg-type]
        assert ended.value.code == 0 and signal.getitimer(signal.ITIMER_REAL)[0] == 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before:
            signal.signal(number, handler)
