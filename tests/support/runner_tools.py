"""What the runner's tests share: cases for the fakes, and Runners with the judge that only runs."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from fuzz.core.case import Case
from fuzz.core.verdict import Verdict
from fuzz.runner import Runner
from fuzz.runner.limits import Limits
from oracles.masks import Causal
from oracles.problem import Problem

FAKES = tuple(str(path) for path in sorted((Path(__file__).parents[1] / "fakes").glob("*.py")))


def case(name: str, len_k: int = 12) -> Case:
    """A small case for the fake `name`."""
    return Case(f"fake.{name}", Problem((8, 5), (len_k, 4), 2, 1, 8, 8, "float32", mask=Causal()))


def runner(**changed: Any) -> Runner:
    """A Runner of the fakes on the host, which are called hung at three times their limit."""
    settings: dict[str, Any] = {"files": FAKES, "execute": "runner_judge:execute", "limits": Limits(confirm=3.0)}
    return Runner(**settings | changed)


def kind(verdict: Verdict) -> str:
    """Outcome and kind of a verdict with one finding of the runner."""
    (finding,) = verdict.findings
    assert finding.oracle == "runner"
    assert verdict.reason == ""
    return f"{verdict.outcome}: {finding.kind}"


def gone(pid: int, seconds: float = 2.0) -> bool:
    """Whether the process ends within `seconds` (a zombie has ended)."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def kill_after(pid: int, seconds: float, number: int = signal.SIGKILL) -> None:
    """Sends a signal a little later, from a thread."""
    import threading

    threading.Timer(seconds, os.kill, (pid, number)).start()
