"""What the commands about the ledger do: `attnfuzz ledger …`, `export`, `import`; and the ledger of `attnfuzz run`."""

from __future__ import annotations

import argparse
from pathlib import Path

from fuzz.cli.exit_codes import OK
from fuzz.ledger.place import NONE, chosen, named
from fuzz.session.pool import Beside


def beside(option: str | None) -> Beside:
    """What feeds the ledger while a session runs. Raises LedgerError where one was asked for that cannot be opened."""
    from fuzz.ledger.feed import feeding

    if named(option):
        from fuzz.ledger.database import Ledger

        Ledger(chosen(option)).close()
    return feeding(chosen(option))


def import_(options: argparse.Namespace) -> int:
    from fuzz.ledger.database import Ledger
    from fuzz.ledger.feed import take_in

    with Ledger(place(options)) as ledger:
        for path in map(Path, options.paths):
            print(f"{path}: {take_in(ledger, path)}")
    return OK


def place(options: argparse.Namespace) -> str:
    """The ledger of a command. Raises LedgerError where users want none."""
    from fuzz.ledger.errors import LedgerError

    where = chosen(options.ledger)
    if where in NONE:
        raise LedgerError("--ledger: this command needs one, got 'none'")
    return where
