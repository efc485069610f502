"""What a target may offer to the runner beyond the Target protocol. Nothing here is needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:  # the child ties its lifeline before it spends seconds on torch
    from torch import Tensor


@runtime_checkable
class Watched(Protocol):
    """A target whose kernels wait on semaphores in global memory, and that can name them.

    On a GPU a copy on a second stream works while a kernel spins, so the stuck values can be read out of a hang. The
    child would do it from a thread of its own while `run` blocks in a synchronisation (which releases the GIL), and the
    values would stand in evidence["semaphores"]. Nobody calls this yet.
    """

    def watched(self) -> Mapping[str, Tensor]:
        """The semaphores of the run that is going on, by name: int32 tensors on the target's device."""
