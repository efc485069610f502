"""What the commands about the ledger do: `attnfuzz ledger …`, `export`, `import`; and the ledger of `attnfuzz run`."""

from __future__ import annotations

from fuzz.ledger.place import chosen, named
from fuzz.session.pool import Beside


def beside(option: str | None) -> Beside:
    """What feeds the ledger while a session runs. Raises LedgerError where one was asked for that cannot be opened."""
    from fuzz.ledger.feed import feeding

    if named(option):
        from fuzz.ledger.database import Ledger

        Ledger(chosen(option)).close()
    return feeding(chosen(option))

