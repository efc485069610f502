"""The short form, for every change: what the committed scoreboard says was found has to be found again.

Each bug gets one trial, from the seed that took fewest cases, with the kernels of the committed scoreboard: while the
generator stays as it is, that many cases find it again, and a bug takes a second or two. The trial may have as many
cases as FACTOR times the bug's worst so far, at least LEAST, and MOST where fewer than ENOUGH trials tell: a generator
or an oracle that got worse shows, one that is only different takes longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from fuzz.score.board import Board
from fuzz.score.settings import Settings
from fuzz.score.trial import OURS

SCOREBOARD = Path(__file__).resolve().parents[2] / "ci" / "results" / "score_host.json"
FACTOR, LEAST, MOST = 2.0, 15, 120
ENOUGH = 3
SECONDS = 480.0  # a trial that has begun may take another minute and a half


class Known(msgspec.Struct, frozen=True):
    """A bug that was found: after so many cases at worst, of so many trials; `seed` took fewest."""

    worst: int
    seed: int
    trials: int


class Before(msgspec.Struct):
    """What is read of a committed scoreboard."""

    class Asked(msgspec.Struct):
        """Of its settings."""

        keys: int

    class Bug(msgspec.Struct):
        """One bug of it."""

        class Seen(msgspec.Struct):
            """Cases of each trial of one generator, judged by one rule."""

            generator: str
            rule: str
            cases: list[int | None]
            seeds: list[int] = []

        name: str
        found: int
        worst: int
        seen: list[Seen]

        @property
        def known(self) -> Known:
            """What is kept of it."""
            ours = next(one for one in self.seen if (one.generator, one.rule) == ("ours", OURS))
            took = {seed: n for seed, n in zip(ours.seeds, ours.cases, strict=True) if n is not None}
            return Known(self.worst, min(took, key=lambda seed: took[seed]), len(ours.cases))

    bugs: list[Bug]
    settings: Asked


def before(path: Path = SCOREBOARD) -> tuple[dict[str, Known], int]:
    """Bugs that the committed scoreboard found, and how many kernels of a target it might compile; none without a file.
    Raises ValueError for a damaged one."""
    if not path.exists():
        return {}, Settings().keys
    try:
        known = msgspec.json.decode(path.read_bytes(), type=Before)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}: is no scoreboard: {error}") from None
    return {bug.name: bug.known for bug in known.bugs if bug.found}, known.settings.keys


def quick(wanted: Settings, known: dict[str, Known], keys: int) -> Settings:
    """The settings of the short form."""
    return msgspec.structs.replace(
        wanted,
        seeds=1,
        cases=LEAST,
        peer_seeds=0,
        peer_cases=0,
        minimize_runs=0,
        keys=keys,
        limits={name: limit_of(bug) for name, bug in known.items()},
        starts={name: bug.seed for name, bug in known.items()},
    )


def limit_of(bug: Known) -> int:
    """Cases of a bug's trial: the most where its worst comes from a few trials only."""
    return MOST if bug.trials < ENOUGH else min(MOST, max(LEAST, int(FACTOR * bug.worst)))


def lost(of: Board, known: Mapping[str, object]) -> tuple[list[str], list[str]]:
    """Bugs that were found and now are not; bugs that were found and now were not looked for."""
    now = {bug.name: bug for bug in of.bugs if bug.trials}
    missed = [name for name in known if name in now and not now[name].found]
    return missed, [name for name in known if name not in now]
