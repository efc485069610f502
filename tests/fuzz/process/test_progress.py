"""The progress line: plain lines where there is no terminal, one that is redrawn where there is one."""

from __future__ import annotations

import io

from rich.console import Console

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


def test_durations_are_read_at_a_glance() -> None:
    assert [duration(seconds) for seconds in (4.2, 59.4, 59.6, 187.0, 3909.0)] == [
        "4.2 s",
        "59.4 s",
        "1:00",
        "3:07",
        "1:05:09",
    ]
