"""Python stacks of a child from outside, by two independent ways, and names for how it ended.

py-spy reads the child's memory and needs nothing of it; where it is missing or not allowed, faulthandler's handler
inside the child writes the stacks on a signal, which works even while native code holds the GIL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fuzz.process.tool import Tool, find
from fuzz.runner.limits import Limits

if TYPE_CHECKING:
    from fuzz.runner.process import Child


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
