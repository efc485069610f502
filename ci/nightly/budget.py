"""Which device fuzzes next: coverage first, then the rate of new findings.

A night's time goes out in rounds, each a session of one device. A device is *covering* until a round of it brings fewer
than SATURATED of its covered pairs of features anew; among covering devices the one with most new pairs a second
comes next, one that has not run before all others. When none is covering, the next round goes to the device with the
largest expected rate of new findings, (findings + 1) / (seconds + PRIOR): a Gamma prior of one finding in PRIOR
seconds, so that a device that finds nothing falls behind. One that did not run in the last TURN rounds runs all the
same.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

SATURATED = 0.01
PRIOR = 1800.0
TURN = 10
LEAST = 30.0  # seconds: a shorter round would only start and end


class Round(msgspec.Struct, frozen=True):
    """One session of a device. seconds: wall time; pairs: covered by the device so far, new_pairs: of them by this
    round; findings: new signatures."""

    device: str
    folder: str
    cases: int
    seconds: float
    pairs: int
    new_pairs: int
    findings: int


class Budget(msgspec.Struct, frozen=True):
    """Limits of a night's fuzzing. cases: of all devices together; seconds: 0 is no limit."""

    devices: tuple[str, ...]
    cases: int
    seconds: float = 0.0

    @property
    def per_round(self) -> int:
        """Cases of a round: about four rounds a device, of 50 cases at least."""
        return max(50, -(-self.cases // (4 * len(self.devices))))

    @property
    def seconds_per_round(self) -> float:
        """Seconds after which a round draws no further case: an eighth of a device's share."""
        return max(LEAST, self.seconds / (8 * len(self.devices))) if self.seconds else float("inf")

    def left(self, rounds: Sequence[Round]) -> tuple[int, float]:
        """Cases and seconds that are left (inf: no limit)."""
        cases = self.cases - sum(one.cases for one in rounds)
        seconds = self.seconds - sum(one.seconds for one in rounds) if self.seconds else float("inf")
        return max(cases, 0), max(seconds, 0.0)

    def next(self, rounds: Sequence[Round]) -> str | None:
        """The device of the next round, or None: the budget is spent."""
        cases, seconds = self.left(rounds)
        if cases == 0 or seconds < LEAST:
            return None
        by = {device: [one for one in rounds if one.device == device] for device in self.devices}
        for device, its in by.items():
            if not its:
                return device
        covering = [device for device, its in by.items() if its[-1].new_pairs >= SATURATED * its[-1].pairs]
        if covering:
            return max(covering, key=lambda device: by[device][-1].new_pairs / max(by[device][-1].seconds, 1e-9))
        recent = {one.device for one in rounds[-TURN:]}
        if len(rounds) >= TURN and (waiting := [device for device in self.devices if device not in recent]):
            return waiting[0]
        return max(self.devices, key=lambda device: _rate(by[device]))


def _rate(rounds: Sequence[Round]) -> float:
    """Expected new findings a second."""
    return (sum(one.findings for one in rounds) + 1) / (sum(one.seconds for one in rounds) + PRIOR)
