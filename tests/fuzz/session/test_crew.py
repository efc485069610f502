"""fuzz/session/crew.py: settling ends with the session's time."""

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
