"""Where the ledger is: the option and the environment variable. Imports nothing heavy: every command line reads it.

Default: a file beside the sessions of the folder at hand, so that `attnfuzz report` after `attnfuzz run` works without
any setting, and what is under .attnfuzz/ can be removed as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

VARIABLE = "ATTNFUZZ_LEDGER"
DEFAULT = ".attnfuzz/ledger.sqlite"
NONE = ("", "none")
HELP = f"ledger: a file (SQLite), postgresql://…, or 'none' (${VARIABLE}, or {DEFAULT})"


def add_option(add: Callable[..., Any], prefix: str = "") -> None:
    """Adds --ledger through `add` (argparse's or pytest's)."""
    add(f"--{prefix}ledger", metavar="URL", default=None, help=HELP)


def chosen(option: str | None) -> str:
    """The place that users chose, or the default; 'none' or '': no ledger."""
    return os.environ.get(VARIABLE, DEFAULT) if option is None else option


def named(option: str | None) -> bool:
    """True if a ledger was asked for: then one that cannot be opened is a user's mistake, and said before the work."""
    return (option is not None or VARIABLE in os.environ) and chosen(option) not in NONE
