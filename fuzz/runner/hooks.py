"""What a target may offer to the runner beyond the Target protocol. Nothing here is needed."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Watched(Protocol):
    """A target that can say what its device's memory shows while its run does not end.

    Called from a thread of its own (lookout.py) while `run`, or the wait after it, blocks without holding the GIL; more
    than once. On a GPU it must neither synchronise nor allocate: see fuzz/devices/cuda.py. The result is added to the
    verdict's evidence of a hang: JSON values by name; "explained", if there, is the one line of text that says why.
    """

    def look(self) -> dict[str, Any]:
        """What is seen now."""


@runtime_checkable
class Traced(Protocol):
    """A target whose device keeps a timeline: on the emulated GPU, who ran when and who waited for what."""

    def trace_to(self, path: str) -> None:
        """From now on, the timeline of a case's first run goes to `path`, and that of a run which ends in a finding
        replaces it; a picture beside it, with the ending .svg. "": no more."""
