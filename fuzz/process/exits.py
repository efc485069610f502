"""The end of a process in words: its exit code, the last line that it wrote, the innermost frame of its stacks."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


_FRAME = re.compile(r'^\s+(?:File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)|(?P<spy>\S.*))$')


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
