"""One line that says how far a command has come: kept up to date on a terminal, a plain line now and then elsewhere.

    with ProgressLine("attnfuzz", "cases", Console(stderr=True)) as line:
        line.show(34, 300, "2 new findings")

Every long command of the harness shows its progress through this class.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

PERIOD = 10.0  # seconds between two plain lines
LATELY, ENOUGH = 60.0, 10  # seconds and units that a rate is of, at least, as soon as there are so many


class ProgressLine:
    """The line of one command; any thread may call `show`.

    name     the first word of the line
    unit     what is counted: 'cases', 'kernels'
    console  where the line goes: a terminal gets a bar that is redrawn, anything else a line every `period` seconds
    """

    def __init__(self, name: str, unit: str, console: Console, period: float = PERIOD) -> None:
        self._name, self._unit, self._console, self._period = name, unit, console, period
        self._lock = threading.Lock()
        self._printed = time.monotonic()
        self._done: deque[tuple[float, int]] = deque()  # what was done and when, as far as a rate looks back
        self._live = _live(console) if console.is_terminal else None
        self._task = self._live.add_task(name, text="", total=None) if self._live is not None else None

    def __enter__(self) -> Self:
        self._printed = time.monotonic()
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, done: int, total: int | None, note: str = "", most: float | None = None, begun: bool = True) -> None:
        """Says that `done` of `total` units are done; None: the total is not known yet. note: more for the line; most:
        seconds that the command has left, where it has a limit; begun: False while nothing can be done yet, which time
        says nothing of the units to come."""
        with self._lock:
            if not begun:
                self._done.clear()
            text = _text(done, total, self._unit, self._rate(done), note, most)
            if self._live is not None and self._task is not None:
                self._live.update(self._task, completed=done, total=total, text=text)
            elif time.monotonic() - self._printed >= self._period:
                self._printed = time.monotonic()
                self._console.print(f"{self._name}: {text}", highlight=False, markup=False, soft_wrap=True)

    def _rate(self, done: int) -> float:
        """Units a second, lately. What was done before this command, where it resumes an earlier one, does not
        count."""
        now = time.monotonic()
        self._done.append((now, done))
        while len(self._done) > 1 and now - self._done[1][0] >= LATELY and done - self._done[1][1] >= ENOUGH:
            self._done.popleft()
        began, before = self._done[0]
        return (done - before) / (now - began) if now > began else 0.0

    def print(self, text: str) -> None:
        """Prints a line that stays, above the progress line."""
        with self._lock:
            console = self._live.console if self._live is not None else self._console
            console.print(text, highlight=False, markup=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """Time for readers: '4.2 s', '3:07', '1:05:09'."""
    if round(seconds) < 60:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{left:02d}" if minutes >= 60 else f"{minutes}:{left:02d}"


def _live(console: Console) -> Progress:
    """A bar and its text. What the command prints itself goes through `ProgressLine.print`, so nothing is redirected:
    under pytest the streams are pytest's."""
    columns = (TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[text]}"), TimeElapsedColumn())
    return Progress(
        *columns, console=console, transient=True, refresh_per_second=4, redirect_stdout=False, redirect_stderr=False
    )


def _text(done: int, total: int | None, unit: str, rate: float, note: str, most: float | None) -> str:
    """'34/300 cases · 3.4/s · <note> · 1:18 left'."""
    parts = [f"{done}/{total} {unit}" if total is not None else f"{done} {unit}"]
    if rate:
        parts.append(f"{rate:.1f}/s" if rate >= 0.95 else f"{60 * rate:.1f}/min")
    if note:
        parts.append(note)
    left = [(total - done) / rate] if total is not None and rate else []
    left += [most] if most is not None else []
    if done == total or not left:
        return " · ".join(parts)
    parts.append(f"{duration(min(left))} left" if min(left) > 0 else "ending")
    return " · ".join(parts)
