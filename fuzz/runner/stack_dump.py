"""Python stacks of a child from outside, by two independent ways, and names for how it ended.

py-spy reads the child's memory and needs nothing of it; where it is missing or not allowed, faulthandler's handler
inside the child writes the stacks on a signal, which works even while native code holds the GIL.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fuzz.process.tool import Tool, find
from fuzz.runner.limits import Limits

if TYPE_CHECKING:
    from fuzz.runner.process import Child

_FRAME = re.compile(r'^\s+(?:File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)|(?P<spy>\S.*))$')


@dataclass(frozen=True)
class Stacks:
    """All threads' Python stacks, where they came from, and why it was not py-spy."""

    text: str
    source: str
    trouble: str = ""


class Sampler:
    """One sample of a child's stacks, begun now, taken later. `gently`: without pausing it, it may be merely slow."""

    def __init__(self, child: Child, limits: Limits, *, gently: bool) -> None:
        self._child = child
        program = find("py-spy")
        options = ["--nonblocking"] if gently else []
        self._tool = Tool([program, "dump", "--pid", str(child.pid), *options], limits.stack) if program else None

    def take(self) -> Stacks:
        """Waits for py-spy, at most its limit; then asks faulthandler where that gave nothing."""
        trouble = "py-spy: not installed"
        if self._tool is not None:
            done, text = self._tool.result()
            if done and "\n" in text:
                return Stacks(text, "py-spy")
            trouble = text
        return Stacks(self._child.dump_by_signal(), "faulthandler", trouble)

    def cancel(self) -> None:
        """The child answered after all."""
        if self._tool is not None:
            self._tool.cancel()


def exit_name(code: int) -> str:
    """'SIGSEGV (signal 11)' of -11, 'exit code 3' of 3."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"{signal.Signals(-code).name} (signal {-code})"
    except ValueError:
        return f"signal {-code}"


def last_line(text: str) -> str:
    """The last line with anything on it, which is where Python and CUDA say what went wrong, before faulthandler's."""
    said, fatal, rest = text.partition("Fatal Python error")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else (fatal + rest).partition("\n")[0]


def innermost(stacks: str) -> str:
    """The innermost Python frame of the main thread in a dump of py-spy or faulthandler, or ''."""
    lines = stacks.splitlines()
    heads = [i for i, line in enumerate(lines) if "MainThread" in line or line.startswith("Current thread")]
    threads = [i for i, line in enumerate(lines) if "most recent call first" in line]
    start = (heads or threads[-1:] or [len(lines)])[0]
    for line in lines[start + 1 :]:
        if line.strip() == "Garbage-collecting":  # faulthandler's remark before the frames
            continue
        frame = _FRAME.match(line)
        if frame is None:
            return ""
        return frame["spy"] or f"{frame['name']} ({frame['file']}:{frame['line']})"
    return ""
