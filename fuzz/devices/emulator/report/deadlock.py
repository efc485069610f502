"""A deadlock: which warps wait, for what, and why nothing will end their wait."""

from __future__ import annotations

from dataclasses import dataclass

Cta = tuple[int, int, int]


@dataclass(frozen=True)
class Waiting:
    """One warp in a deadlock.

    what      for what it waits, in words: 'for semaphores[b 0, h 0, m 3] = 0 to become 2', 'at barrier 0, where …'
    location  the memory that it spins on, where that is one place; value: what it holds; wanted: the value that would
              end the spin, where the loop shows it
    writer    a CTA that has not started and would write there
    source    the source line of the instruction, where the PTX says it
    """

    cta: Cta
    warp: int
    line: int
    instruction: str
    what: str
    location: str = ""
    value: int | None = None
    wanted: int | None = None
    writer: Cta | None = None
    source: str = ""


@dataclass(frozen=True)
class Deadlock:
    """A state in which no resident warp can ever run again.

    resident, finished, not_started, cancelled  CTAs of the launch; cancelled by clusterlaunchcontrol
    resident_ctas                    the most that can be resident at once
    explored                         CTAs that have not started and were run to see what they would write
    """

    waiting: tuple[Waiting, ...]
    resident: int
    finished: int
    not_started: int
    resident_ctas: int
    explored: int = 0
    cancelled: int = 0

    def __str__(self) -> str:
        """The cause in a sentence, the state of the launch, and a line for each group of warps that wait alike."""
        state = (
            f"  {self.resident} CTAs are resident (at most {self.resident_ctas} at once) and none can go on; "
            f"{self.finished} have finished, {self.not_started} have not started"
            f"{f', {self.cancelled} were cancelled' if self.cancelled else ''}"
        )
        alike: dict[tuple[Cta, str, str], list[int]] = {}
        for w in self.waiting:
            where = f"{f'{w.source}, ' if w.source else ''}PTX line {w.line}: {w.instruction}"
            alike.setdefault((w.cta, w.what, where), []).append(w.warp)
        rows = [f"  CTA {cta} {_warps(warps)} {what} ({where})" for (cta, what, where), warps in alike.items()]
        return "\n".join([f"deadlock: {self.cause}", state, *rows])

    @property
    def cause(self) -> str:
        """The CTAs that wait for each value of the first location waited for, and why nobody will write it; without
        such a location, the first wait of another kind."""
        spins = [w for w in self.waiting if w.location]
        if not spins:
            others = [w for w in self.waiting if not w.what.startswith("at barrier")] or list(self.waiting)
            return f"CTA {others[0].cta} warp {others[0].warp} waits {others[0].what}" if others else "no warp can run"
        first = spins[0]
        here = [w for w in spins if w.location == first.location]
        for_what: dict[str, list[Cta]] = {}
        for w in here:
            ctas = for_what.setdefault("another value" if w.wanted is None else str(w.wanted), [])
            if w.cta not in ctas:
                ctas.append(w.cta)
        waits: list[str] = []
        for wanted, ctas in for_what.items():
            verb = "" if waits else " wait" if len(ctas) > 1 else " waits"
            waits.append(f"{_ctas(ctas)}{verb} for {wanted}")
        more = len({w.location for w in spins}) - 1
        also = f" (and so with {more} more location{'s' * (more > 1)})" if more else ""
        return f"{first.location} is {first.value}; {', '.join(waits)}; {self._outlook(here)}{also}"

    def _outlook(self, here: list[Waiting]) -> str:
        """Reason why the value will not come."""
        writers = sorted({w.writer for w in here if w.writer is not None})
        if writers:
            full = f"it cannot start while {self.resident} CTAs are resident"
            return f"CTA {writers[0]} would write it, but {full}"
        if not self.not_started:
            return "every CTA has started, and none that can run is left to write it"
        if self.not_started <= self.explored:
            return f"none of the {self.not_started} CTAs that have not started would write it before waiting itself"
        return f"none of the next {self.explored} CTAs that have not started would write it before waiting itself"


def _warps(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"warp {numbers[0]} waits"
    return f"warps {', '.join(map(str, sorted(numbers)))} wait"


def _ctas(ctas: list[Cta]) -> str:
    """'CTA (4, 0, 0)', 'CTAs (4, 0, 0) and (5, 0, 0)', '7 CTAs from (4, 0, 0) to (10, 0, 0)'."""
    if len(ctas) == 1:
        return f"CTA {ctas[0]}"
    if len(ctas) <= 3:
        return f"CTAs {', '.join(map(str, ctas[:-1]))} and {ctas[-1]}"
    return f"{len(ctas)} CTAs from {ctas[0]} to {ctas[-1]}"
