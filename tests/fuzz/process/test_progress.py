"""The progress line: plain lines where there is no terminal, one that is redrawn where there is one."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fuzz.process import progress
from fuzz.process.progress import ProgressLine, duration


def test_without_a_terminal_there_is_a_plain_line_now_and_then() -> None:
    shown = io.StringIO()
    with ProgressLine("attnfuzz", "cases", Console(file=shown, width=200), period=0.0) as line:
        line.show(0, 300, "compiling 81 kernels, 34 done")
        line.show(3, 300, "1 new finding")
    first, second = shown.getvalue().splitlines()
    assert first == "attnfuzz: 0/300 cases · compiling 81 kernels, 34 done"
    assert second.startswith("attnfuzz: 3/300 cases · ") and second.endswith(" left") and "1 new finding" in second


def test_before_its_period_a_plain_line_is_left_out() -> None:
    shown = io.StringIO()
    with ProgressLine("attnfuzz", "cases", Console(file=shown)) as line:
        line.show(3, 300)
    assert shown.getvalue() == ""


def test_a_terminal_gets_a_line_that_goes_away_and_printed_ones_that_stay() -> None:
    shown = io.StringIO()
    with ProgressLine("attnfuzz", "cases", Console(file=shown, force_terminal=True, width=200)) as line:
        line.show(3, 300, "1 new finding")
        line.print("81 kernels in 90 s")
    assert "81 kernels in 90 s" in shown.getvalue() and "3/300 cases" in shown.getvalue()
    assert shown.getvalue().endswith("\x1b[2K") or "\x1b[1A\x1b[2K" in shown.getvalue()


def test_the_rate_is_of_this_command_where_it_resumes_an_earlier_one() -> None:
    shown = io.StringIO()
    with ProgressLine("attnfuzz", "trials", Console(file=shown, width=200), period=0.0) as line:
        line.show(90, 100)
        line.show(90, 100)
    assert shown.getvalue().splitlines() == ["attnfuzz: 90/100 trials"] * 2


def _said(shows: list, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines of a command. shows: (seconds since its start, arguments of `show`)."""
    shown, now = io.StringIO(), 1000.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with ProgressLine("attnfuzz", "cases", Console(file=shown, width=200), period=0.0) as line:
        for seconds, arguments in shows:
            now = 1000.0 + seconds
            line.show(*arguments[:-1], **arguments[-1])
    return [text.removeprefix("attnfuzz: ") for text in shown.getvalue().splitlines()]


def test_time_that_passes_before_anything_can_be_done_is_in_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = [(seconds, (0, 300, "compiling", {"begun": False})) for seconds in (0, 30, 60)]
    *_, last = _said([*waiting, (61, (0, 300, {})), (65, (8, 300, {}))], monkeypatch)
    assert last == "8/300 cases · 1.6/s · 3:02 left"


def test_the_rate_is_that_of_the_last_minute_and_of_ten_units(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = [(60 * minute, (minute, 300, {})) for minute in range(31)]
    *_, last = _said(slow, monkeypatch)
    assert last == "30/300 cases · 1.0/min · 4:30:00 left"
    *_, last = _said([*slow, *((1800 + second, (30 + 2 * second, 300, {})) for second in range(1, 62))], monkeypatch)
    assert last == "152/300 cases · 2.0/s · 1:14 left"


def test_no_more_is_left_than_a_limit_says(monkeypatch: pytest.MonkeyPatch) -> None:
    shows = [(0, (0, 3000, {"most": 150.0})), (10, (1, 3000, {"most": 140.0})), (160, (9, 3000, {"most": -10.0}))]
    first, second, third = _said(shows, monkeypatch)
    assert first == "0/3000 cases · 2:30 left"
    assert second == "1/3000 cases · 6.0/min · 2:20 left"
    assert third.endswith(" · ending")


def test_durations_are_read_at_a_glance() -> None:
    assert [duration(seconds) for seconds in (4.2, 59.4, 59.6, 187.0, 3909.0)] == [
        "4.2 s",
        "59.4 s",
        "1:00",
        "3:07",
        "1:05:09",
    ]
