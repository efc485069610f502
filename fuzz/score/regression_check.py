"""The short form, for every change: what the committed scoreboard says was found has to be found again.

Each mutant gets one trial, from the seed that took fewest cases, with the kernels of the committed scoreboard: while
the generator stays as it is, that many cases find it again, mostly one to five. They come from the cheapest to the
dearest, by what that trial took, until SECONDS have gone by; what had no time is reported, and is no failure. Where
time is short the dearest would never have any, so they begin at another quarter each day and go round.

A trial may have as many cases as FACTOR times the mutant's worst so far, at least LEAST, or LEAST_OF_FEW where fewer
than ENOUGH trials tell. A generator or an oracle that got worse shows; one that only draws other cases takes longer.

NOTE [by chance]: cases until a rare mutant is found are distributed geometrically, so one more trial goes beyond f
times the worst of n with probability 1·2···n / ((f + 1)(f + 2)···(f + n)): for n = 5, 1 in 56 at f = 3, 1 in 462 at 6.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from pathlib import Path

import msgspec

from fuzz.score.scoreboard import Scoreboard
from fuzz.score.settings import Settings
from fuzz.score.trial import OURS

SCOREBOARD = Path(__file__).resolve().parents[2] / "ci" / "results" / "score_host.json"
FACTOR = 6.0  # NOTE [by chance]
LEAST, LEAST_OF_FEW = 60, 200
ENOUGH = 3
QUARTERS = 4  # with each of which they begin in turn
SECONDS = 430.0  # then no case begins; one that has begun may take another minute


class Known(msgspec.Struct, frozen=True):
    """A mutant that was found: after so many cases at worst, of so many trials; `seed` took fewest, in about
    `seconds`."""

    worst: int
    seed: int
    trials: int
    seconds: float


class CommittedScoreboard(msgspec.Struct):
    """Fields that are read of a committed scoreboard."""

    class ScoreSettings(msgspec.Struct):
        """Fields that are read of its settings."""

        keys: int

    class Bug(msgspec.Struct):
        """One mutant of it."""

        class Seen(msgspec.Struct):
            """Cases of each trial of one generator, judged by one rule."""

            generator: str
            rule: str
            cases: list[int | None]
            seeds: list[int] = []

        name: str
        found: int
        median: float
        worst: int
        seconds_median: float
        compiling_median: float
        seen: list[Seen]

        @property
        def known(self) -> Known:
            """Summary that the short form needs."""
            ours = next(one for one in self.seen if (one.generator, one.rule) == ("ours", OURS))
            took = {seed: n for seed, n in zip(ours.seeds, ours.cases, strict=True) if n is not None}
            seed = min(took, key=lambda seed: took[seed])
            seconds = (self.seconds_median + self.compiling_median) / max(self.median, 1.0) * took[seed]
            return Known(self.worst, seed, len(ours.cases), round(seconds, 2))

    bugs: list[Bug]
    settings: ScoreSettings


def before(path: Path = SCOREBOARD) -> tuple[dict[str, Known], int]:
    """Mutants that the committed scoreboard found, and how many kernels of a target it might compile; none without a
    file. Raises ValueError for a damaged one."""
    if not path.exists():
        return {}, Settings().keys
    try:
        known = msgspec.json.decode(path.read_bytes(), type=CommittedScoreboard)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}: is no scoreboard: {error}") from None
    return {bug.name: bug.known for bug in known.bugs if bug.found}, known.settings.keys


def turn_of_today() -> int:
    """The days since some day: the default of `--rotate`."""
    return datetime.datetime.now(datetime.UTC).date().toordinal()


def rotated(known: dict[str, Known], turn: int) -> tuple[str, ...]:
    """Mutants, from the cheapest to the dearest, begun at the quarter that it is the turn of."""
    order = sorted(known, key=lambda name: (known[name].seconds, name))
    start = turn % QUARTERS * len(order) // QUARTERS
    return (*order[start:], *order[:start])


def short_settings(settings: Settings, known: dict[str, Known], keys: int, turn: int = 0) -> Settings:
    """The settings of the short form."""
    return msgspec.structs.replace(
        settings,
        seeds=1,
        cases=LEAST,
        peer_seeds=0,
        peer_cases=0,
        minimize_runs=0,
        keys=keys,
        limits={name: limit_of(bug) for name, bug in known.items()},
        starts={name: bug.seed for name, bug in known.items()},
        first=rotated(known, turn),
    )


def limit_of(bug: Known) -> int:
    """Cases that a mutant's trial may have."""
    return max(LEAST_OF_FEW if bug.trials < ENOUGH else LEAST, int(FACTOR * bug.worst))


class Lost(msgspec.Struct, frozen=True):
    """Mutants that were found before: `missed` are not found any more, `failed` could not be looked for (by mutant,
    why), `late` had no time; only the last ones are no failure."""

    missed: tuple[str, ...]
    failed: dict[str, str]
    late: tuple[str, ...]

    @property
    def bad(self) -> bool:
        """True if a change must not pass."""
        return bool(self.missed or self.failed)


def lost(scoreboard: Scoreboard, known: Iterable[str]) -> Lost:
    """Compares a scoreboard with the mutants that were found before."""
    now = {bug.name: bug for bug in scoreboard.bugs}
    failed = {name: now[name].errors[0] for name in known if name in now and now[name].errors}
    tried = {name for name, bug in now.items() if bug.trials and name not in failed}
    return Lost(
        missed=tuple(name for name in known if name in tried and not now[name].found),
        failed=failed,
        late=tuple(name for name in known if name not in tried and name not in failed),
    )
