"""The entry point of `attnfuzz`: parses, runs the command, and turns every end into an exit code (exit_codes.py)."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from fuzz.cli.exit_codes import HARNESS, INTERRUPTED, USAGE
from fuzz.devices.present import ask
from fuzz.process.forked import ONE_THREAD
from fuzz.process.imports import end_without_collecting, freeze, importing
from fuzz.process.signals import held


def main(arguments: Sequence[str] | None = None) -> int:
    """Parses the arguments and runs the command; returns the exit code.

    A user's mistake and Ctrl-C, which may come while modules are imported, end in one line and without a traceback.
    Raises SystemExit for `--help`, `--version` and options that do not parse, as argparse does.
    """
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        print("attnfuzz: interrupted; what was found so far is saved", file=sys.stderr)
        return INTERRUPTED
    except Exception:
        traceback.print_exc()
        print("attnfuzz: a fault of the harness itself; please report the traceback above", file=sys.stderr)
        return HARNESS


def _run(arguments: Sequence[str] | None) -> int:
    os.environ.update(ONE_THREAD)  # a process with a second thread, as numpy's BLAS starts, cannot be forked
    ask()
    with held(), importing():  # torch is among them, whose modules may swallow a KeyboardInterrupt
        from fuzz.bisect.revisions import BisectError
        from fuzz.cli.parsers import parser
        from fuzz.compiling.cache import CacheError
        from fuzz.core.case import CaseError
        from fuzz.core.import_check import check_packages
        from fuzz.core.script_call import ScriptError
        from fuzz.corpus.entry import CorpusError
        from fuzz.dashboard.errors import SiteError
        from fuzz.ledger.errors import LedgerError
        from fuzz.runner import HarnessError, RunnerError
        from fuzz.session.resume import SessionError
        from fuzz.targets.registry import TargetError

        mistakes = (
            BisectError,
            CacheError,
            CaseError,
            CorpusError,
            LedgerError,
            RunnerError,
            ScriptError,
            SiteError,
            SessionError,
            TargetError,
        )
        command_line = parser()
    if arguments is None:  # this process is the command, and nothing else
        freeze()
        end_without_collecting()
    options = command_line.parse_args(arguments)
    try:
        check_packages()
        return options.command(options)
    except HarnessError as error:  # its message holds the child's traceback, which a report needs
        print(f"attnfuzz: {error}", file=sys.stderr)
        return HARNESS
    except (*mistakes, OSError) as error:
        print(f"attnfuzz: {_one_line(error)}", file=sys.stderr)
        return USAGE


def _one_line(error: BaseException) -> str:
    """The first line of a message. What a file or a name holds may be in it: nothing of that reaches a terminal as a
    control code."""
    line = str(error).strip().split("\n")[0] or type(error).__name__
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)


if __name__ == "__main__":
    sys.exit(main())
