"""Sessions that a ledger has in part or not at all: their process was killed, or the ledger could not be written to.

Their folders are the source of truth, so the next night takes them in: those of earlier nights, and those of
`attnfuzz run` that the ledger has begun. One whose process still runs writes into the ledger itself.
"""

from __future__ import annotations

import fcntl
import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ci.nightly.options import Options

SESSIONS = Path(".attnfuzz/sessions")  # of `attnfuzz run` and `pytest fuzz`


def unfinished(root: Path, options: Options) -> tuple[list[Path], list[str]]:
    """Folders on this machine whose session the ledger lacks the end of, and those of other machines as 'host:folder'.

    root  folder of all nights
    """
    from fuzz.ledger.errors import LedgerError
    from fuzz.ledger.ingest.folder import read_session_file, uid_of

    ended, elsewhere = _known(options)
    found: dict[str, Path] = {}
    for folder, of_a_night in _folders(root):
        with suppress(LedgerError):  # of a version that cannot be read
            uid = uid_of(read_session_file(folder))
            if not ended.get(uid, not of_a_night) and any(folder.glob("records-*.jsonl")) and not running(folder):
                found[uid] = folder
    return list(found.values()), [place for uid, place in elsewhere.items() if uid not in found]


def _folders(root: Path) -> Iterator[tuple[Path, bool]]:
    """Folders of sessions, and whether they are of a night: users may want none of theirs in a ledger."""
    for pattern, of_a_night in (
        (root.glob("*/sessions/*/session.json"), True),
        (SESSIONS.glob("*/session.json"), False),
    ):
        yield from ((path.parent, of_a_night) for path in sorted(pattern))


def _known(options: Options) -> tuple[dict[str, bool], dict[str, str]]:
    """By session: whether the ledger has its end; and where it lies, if not on this host, of those that it has not."""
    from fuzz.ledger.errors import LedgerError
    from fuzz.ledger.query import read
    from fuzz.ledger.tables.database import Ledger

    try:
        with Ledger(options.ledger, create=False) as ledger:
            rows = list(read.sessions(ledger).itertuples())
    except LedgerError:
        return {}, {}
    here = platform.node()
    ended = {row.session: row.ended == row.ended for row in rows}  # NaN is no end
    return ended, {
        row.session: f"{row.host}:{row.folder}" for row in rows if not ended[row.session] and row.host != here
    }


def running(folder: Path) -> bool:
    """True while a process holds the folder's lock."""
    from fuzz.session.resume import LOCK

    try:
        number = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(number)
    return False
