"""The outcome of a run on the emulator, as data and as text."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fuzz.devices.emulator.report.seen import shortened

if TYPE_CHECKING:
    import numpy as np

    from fuzz.devices.emulator.ptx import Instruction
    from fuzz.devices.emulator.report.deadlock import Deadlock
    from fuzz.devices.emulator.report.endless import Endless
    from fuzz.devices.emulator.report.timeline import Timeline


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, where it is, and what was expected.

    kind         its name, one of kinds.KIND_NAMES
    instruction  the PTX instruction at `line`; cta, warp, lane: who runs it
    source       what that was compiled from: 'attention.py:41'; '' where the PTX does not say
    address      the kernel's address, and `size` bytes from it; tensor: that memory by name and index
    detail       what is wrong, in a sentence whose subject is the lane
    """

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
    source: str = ""

    def __str__(self) -> str:
        who = f"CTA {self.cta} warp {self.warp} lane {self.lane}"
        where = f"{self.source}, " if self.source else ""
        kernel, instruction = shortened(self.kernel), _LIST.sub(_shorter, self.instruction)
        return f"{self.kind}: {who} {self.detail} (kernel {kernel}, {where}PTX line {self.line}: {instruction})"


_LIST = re.compile(r"\{([^{}]*)\}")
_SHOWN = 4  # registers of a list


def _shorter(match: re.Match[str]) -> str:
    """A list of registers in braces; of a long one its first and how many they are."""
    registers = match[1].split(",")
    return match[0] if len(registers) <= _SHOWN else f"{{{registers[0].strip()}, … {len(registers)} registers}}"


@dataclass
class Report:
    """The outcome of one call: status 'finished', 'deadlock', 'endless', 'budget' or 'stopped' (after too many
    findings, or a while after an access out of bounds), and everything found on the way.

    endless  the loop of a launch that does not end; where its budget has ended it, the one that it was in
    """

    status: str = "finished"
    findings: list[Finding] = field(default_factory=list)
    deadlock: Deadlock | None = None
    endless: Endless | None = None
    launches: int = 0
    executed: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    timelines: list[Timeline] = field(default_factory=list, repr=False)  # of each launch, when Emulator(trace=True)
    checked_on_hardware: bool = True  # False where a launch used instructions that no GPU of ours has
    kernel: str = ""  # the last one that was launched
    printed: str = ""  # by printf in kernels
    executions: list[tuple[list[Instruction], np.ndarray]] = field(default_factory=list, repr=False)  # of each launch

    @property
    def ok(self) -> bool:
        return self.status == "finished" and not self.findings

    @property
    def reached(self) -> frozenset[int]:
        """The lines of the PTX that a warp came to, whatever its guard was."""
        return frozenset(source[i].line for source, counts in self.executions for i in counts.nonzero()[0])

    def __str__(self) -> str:
        lines = [f"{self.status}: {self.launches} launches, {self.executed} micro-operations, {self.seconds:.3f} s"]
        if not self.checked_on_hardware:
            lines.append(
                "not checked on hardware: the kernel uses instructions of Blackwell, whose rules are PTX's alone"
            )
        lines += self.notes
        lines += self._each_cause_once()
        if self.deadlock:
            lines.append(str(self.deadlock))
        if self.endless:
            lines.append(str(self.endless))
        return "\n".join(lines)

    def _each_cause_once(self) -> list[str]:
        """The first finding of each kind at each place of the kernel's source, with the number of the others."""
        alike: dict[tuple[str, str, str], list[Finding]] = {}
        for one in self.findings:
            alike.setdefault((one.kind, one.kernel, one.source or f"PTX line {one.line}"), []).append(one)
        return [f"{ones[0]}{f' (and {len(ones) - 1} more like it)' * (len(ones) > 1)}" for ones in alike.values()]


class EmulationError(RuntimeError):
    """A run that did not finish, or that found something; `report` says what."""

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report
