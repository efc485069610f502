"""Member: a worker as the session's process sees it; and what a cluster is to the fleet (cluster.py has Ray's)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fuzz.fleet.compiling import Compilers
from fuzz.fleet.kernels import Kernel
from fuzz.fleet.messages import Job, News, Order

SILENT = 60.0  # seconds without an answer
STARTING = 600.0  # seconds until a worker has introduced itself


@dataclass(frozen=True)
class Options:
    """How a fleet is run.

    health  target of the health check; '': none
    stall   seconds without a verdict after which a worker is given up
    wait    seconds to wait for a node where there is no worker
    """

    health: str = ""
    stall: float = 900.0
    wait: float = 300.0


@dataclass(frozen=True)
class Slot:
    """Place for one worker: a share of one of a node's GPUs, or as many CPUs as a worker takes; numbered within the
    node. gpu: the share; 0: it has no GPU."""

    node: str
    host: str
    number: int
    gpu: float = 0.0

    @property
    def shown(self) -> str:
        """For readers."""
        return f"{self.host} {'GPU worker' if self.gpu else 'CPU worker'} {self.number}"


class Handle(Protocol):
    """A worker's mailbox; nothing here waits."""

    def give(self, job: Job, kernels: Sequence[object]) -> None:
        """As FleetWorker.give; kernels: what `Cluster.share` gave."""

    def stop(self) -> None:
        """As FleetWorker.stop."""

    def kill(self) -> None:
        """Ends its process; `poll` tells nothing more of it."""


class Cluster(Protocol):
    """The machines."""

    def slots(self) -> list[Slot]:
        """The places of nodes that are there at this moment."""

    def start(self, slot: Slot, name: str, order: Order) -> Handle:
        """A worker at a place that is free."""

    def poll(self, seconds: float) -> list[tuple[str, News | str]]:
        """News by the name of the worker, or why it is gone; waits for some, `seconds` at most."""

    def share(self, kernel: Kernel) -> object:
        """Makes a kernel known to all nodes."""

    def compilers(self) -> Compilers:
        """Nodes that compile."""


@dataclass
class Member:
    """A worker. job: what it has in hand; device: its name, once it has introduced itself; holds: its device is
    drained, and it keeps it from others; kernels: how many it was sent."""

    name: str
    slot: Slot
    handle: Handle
    device: str = ""
    job: Job | None = None
    holds: bool = False
    kernels: int = 0
    _state: str = "starting"
    _steps: int = -1
    _heard_at: float = field(default_factory=time.monotonic)
    _ahead_at: float = field(default_factory=time.monotonic)

    @property
    def fit(self) -> bool:
        """True if it has introduced itself and may be given cases."""
        return bool(self.device) and not self.holds

    @property
    def idle(self) -> bool:
        """True if it may be given a job."""
        return self.fit and self.job is None

    def give(self, job: Job, kernels: Sequence[object]) -> None:
        """Gives it a job; it has none."""
        self.job, self._ahead_at = job, time.monotonic()
        self.handle.give(job, kernels)

    def hold(self) -> None:
        """It keeps its device and does nothing more."""
        self.holds = True
        self.handle.stop()

    def heard(self, news: News) -> None:
        """Takes note of a sign of life."""
        self._heard_at = time.monotonic()
        if news.steps != self._steps:
            self._steps, self._ahead_at = news.steps, self._heard_at
        self._state = news.state

    def stalled(self, options: Options) -> str:
        """Why it is given up; '': it is not."""
        now = time.monotonic()
        if not self.device:
            return f"not ready after {STARTING:.0f} s" if now - self._ahead_at > STARTING else ""
        if now - self._heard_at > SILENT:
            return f"no answer for {SILENT:.0f} s"
        if self.job is not None and now - self._ahead_at > options.stall:
            return f"no verdict for {options.stall:.0f} s"
        return ""
