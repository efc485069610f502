"""What a run on the emulator found, as data and as text for people."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from fuzz.devices.emulator.ptx import Instruction
    from fuzz.devices.emulator.report.timeline import Timeline

KIND_NAMES = (
    "out of bounds", "misaligned access", "address of no tensor", "out of bounds of shared memory",
    "barrier in a divergent branch", "barrier with a wrong count", "lanes missing at a .sync instruction", "trap",
    "too many copies in flight", "read of uninitialised memory", "race: two writes", "race: read of an unordered write",
    "race: write over an unordered read", "32-bit arithmetic wrapped in an address", "out of bounds of the parameters",
    "matrix instruction without all lanes", "barrier id above 15", "floating-point adds in no fixed order",
    "shared memory read by wgmma without fence.proxy.async", "register of a wgmma used before wait_group",
    "register of a wgmma used without wgmma.fence", "warps of a warpgroup at different wgmma",
    "operand of a wgmma differs between lanes", "mbarrier misused",
    "copy of more bytes than its size",
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, at its place. `other` says who else took part (a race), `tensor` whose memory it is."""

    kind: str
    kernel: str
    instruction: str
    line: int
    cta: tuple[int, int, int]
    warp: int
    lane: int
    address: int
    size: int
    tensor: str
    detail: str = ""

    def __str__(self) -> str:
        x, y, z = self.cta
        where = f"CTA ({x}, {y}, {z}) warp {self.warp} lane {self.lane}"
        return f"{self.kind}: {self.detail or self.tensor}; {where}, PTX line {self.line}: {self.instruction}"


@dataclass(frozen=True)
class Waiting:
    """One warp in a deadlock and what it waits for; `writer`: a CTA without a slot that would end the wait."""

    cta: tuple[int, int, int]
    warp: int
    line: int
    instruction: str
    what: str
    writer: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Deadlock:
    """No resident warp can ever run again."""

    waiting: tuple[Waiting, ...]
    resident: int
    finished: int
    not_started: int
    slots: int

    def __str__(self) -> str:
        head = (
            f"deadlock: {self.resident} CTAs resident in {self.slots} slots, {self.finished} finished, "
            f"{self.not_started} not yet dispatched"
        )
        alike: dict[tuple[tuple[int, int, int], str, int, str], list[int]] = {}
        for w in self.waiting:
            alike.setdefault((w.cta, w.what, w.line, w.instruction), []).append(w.warp)
        rows = [
            f"  CTA {cta} {_warps(warps)} {what} (PTX line {line}: {instruction})"
            for (cta, what, line, instruction), warps in alike.items()
        ]
        return "\n".join([head, *rows])


def _warps(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"warp {numbers[0]} waits"
    return f"warps {', '.join(map(str, sorted(numbers)))} wait"


@dataclass
class Report:
    """The outcome of one call: status 'finished', 'deadlock', 'budget' or 'stopped', and everything found on the
    way.
    """

    status: str = "finished"
    findings: list[Finding] = field(default_factory=list)
    deadlock: Deadlock | None = None
    launches: int = 0
    executed: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    timelines: list[Timeline] = field(default_factory=list)  # of each launch, when Emulator(trace=True)
    executions: list[tuple[list[Instruction], np.ndarray]] = field(default_factory=list)  # of each launch

    @property
    def ok(self) -> bool:
        return self.status == "finished" and not self.findings

    @property
    def reached(self) -> frozenset[int]:
        """The lines of the PTX that a warp came to, whatever its guard was."""
        return frozenset(source[i].line for source, counts in self.executions for i in counts.nonzero()[0])

    def __str__(self) -> str:
        lines = [f"{self.status}: {self.launches} launches, {self.executed} micro-operations, {self.seconds:.3f} s"]
        lines += self.notes
        lines += [str(f) for f in self.findings]
        if self.deadlock:
            lines.append(str(self.deadlock))
        return "\n".join(lines)


class EmulationError(RuntimeError):
    """A run that did not finish, or that found something; `report` says what."""

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report
