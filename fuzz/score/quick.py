"""The short form, for every change: what the committed scoreboard says was found has to be found again.

Each bug gets one trial with as many cases as FACTOR times its worst so far, at least LEAST: a generator or an oracle
that got worse shows, one that is only different does not.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from fuzz.score.board import Board
from fuzz.score.settings import Settings

SCOREBOARD = Path(__file__).resolve().parents[2] / "ci" / "results" / "score_host.json"
FACTOR, LEAST, MOST = 2.0, 15, 120
SECONDS = 540.0
KEYS = 12


class Before(msgspec.Struct):
    """What is read of a committed scoreboard."""

    class Bug(msgspec.Struct):
        """One bug of it."""

        name: str
        found: int
        worst: int

    bugs: list[Bug]


def before(path: Path = SCOREBOARD) -> dict[str, int]:
    """Bugs that the committed scoreboard found, and the most cases that took. Raises ValueError for a damaged file;
    empty without a file."""
    if not path.exists():
        return {}
    try:
        known = msgspec.json.decode(path.read_bytes(), type=Before)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}: is no scoreboard: {error}") from None
    return {bug.name: bug.worst for bug in known.bugs if bug.found}


def quick(wanted: Settings, known: dict[str, int]) -> Settings:
    """The settings of the short form."""
    limits = {name: limit_of(worst) for name, worst in known.items()}
    return msgspec.structs.replace(
        wanted, seeds=1, cases=LEAST, peer_seeds=0, peer_cases=0, minimize_runs=0, keys=KEYS, limits=limits
    )


def limit_of(worst: int) -> int:
    """Cases of a bug's trial that took at most `worst` so far."""
    return min(MOST, max(LEAST, int(FACTOR * worst)))


def lost(of: Board, known: dict[str, int]) -> tuple[list[str], list[str]]:
    """Bugs that were found and now are not; bugs that were found and now were not looked for."""
    now = {bug.name: bug for bug in of.bugs if bug.trials}
    missed = [name for name in known if name in now and not now[name].found]
    return missed, [name for name in known if name not in now]
