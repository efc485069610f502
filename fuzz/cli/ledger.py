"""Commands about the ledger: `attnfuzz ledger …`, `export`, `import`."""

from __future__ import annotations

import argparse
import getpass
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fuzz.cli.exit_codes import FINDINGS, OK
from fuzz.ledger.errors import LedgerError
from fuzz.ledger.place import NONE, chosen

if TYPE_CHECKING:
    from fuzz.ledger.query.signatures import Known
    from fuzz.ledger.tables.database import Ledger
    from fuzz.ledger.tables.rows import EventKind


def list_(options: argparse.Namespace) -> int:
    from fuzz.cli.show_signatures import as_json, table
    from fuzz.ledger.query.signatures import signatures

    with _open(options, create=False) as ledger:
        found = signatures(ledger)
    if options.state:
        found = [known for known in found if known.life.state in options.state]
    elif not options.all:
        found = [known for known in found if known.life.state != "fixed"]
    if options.json:
        print(as_json(found))
    elif found:
        _console().print(table(found))
    else:
        print("no signature")
    return OK


def show(options: argparse.Namespace) -> int:
    from fuzz.cli.show_signatures import lines
    from fuzz.core.case import to_json
    from fuzz.ledger.query.signatures import signature

    with _open(options, create=False) as ledger:
        known = signature(ledger, options.signature)
    for line in lines(known):
        _console().print(line, highlight=False, markup=False, soft_wrap=True)
    if options.case:
        if known.best.case is None:
            raise LedgerError(f"signature {known.uid}: the ledger has no case of it that this version can read")
        Path(options.case).write_text(to_json(known.best.case))
    return OK


def expect(options: argparse.Namespace) -> int:
    from fuzz.ledger.life import check_arch

    for arch in options.arch:
        check_arch(arch)
    return _say(options, "expect", link=options.link, archs=tuple(options.arch), until=options.until or "")


def unexpect(options: argparse.Namespace) -> int:
    return _say(options, "unexpect")


def replay(options: argparse.Namespace) -> int:
    from fuzz.ledger.query.signatures import signature, signatures

    with _open(options, create=False) as ledger:
        if options.signature:
            chosen_ones = [signature(ledger, uid) for uid in options.signature]
        else:
            chosen_ones = [one for one in signatures(ledger) if options.fixed or one.life.state != "fixed"]
        return FINDINGS if _replay_all(ledger, chosen_ones, options) else OK


def _replay_all(ledger: Ledger, chosen_ones: list[Known], options: argparse.Namespace) -> bool:
    """True if one failed."""
    from fuzz.cli.commands import _files, _runner
    from fuzz.ledger.ingest.environment import here
    from fuzz.ledger.ingest.write import write_single
    from fuzz.ledger.query.signatures import signature
    from fuzz.ledger.replaying import replay, runs_to_do
    from fuzz.session.plan import archs
    from fuzz.session.settings import from_options
    from fuzz.targets.registry import TargetError

    settings = from_options(lambda name: getattr(options, name.replace("-", "_"), None))
    where, bad = here(), False
    with _runner(options) as runner:
        for known in chosen_ones:
            name = known.signature.target
            try:
                why = _missing(name, _files(options), settings.device)
                arch = archs([name], settings)[name] if why is None else ""
            except TargetError as error:
                why = str(error)
            if why is not None:
                print(f"{known.uid}: not run: {why}")
                continue
            row = replay(known, runner.run, arch, options.runs or runs_to_do(known, arch), **where)
            if row is None:
                print(f"{known.uid}: not run: {name} refuses its case, or the ledger has none")
                continue
            write_single(ledger, [row])
            bad |= row.failed > 0
            now = signature(ledger, known.uid)
            print(f"{known.uid}: {row.failed} of {row.runs} runs failed on {arch}: {now.life.state}")
    return bad


def _missing(name: str, files: tuple[str, ...], device: Any) -> str | None:
    from fuzz.targets.registry import load

    return load(name, files, device).missing()


def measure(options: argparse.Namespace) -> int:
    from fuzz.ledger.ingest.environment import here
    from fuzz.ledger.ingest.write import write_single
    from fuzz.ledger.tables.rows import MeasurementRow

    row = MeasurementRow(uuid.uuid4().hex, options.series, time.time(), options.value, options.unit, **here())
    with _open(options) as ledger:
        write_single(ledger, [row])
    return OK


def export(options: argparse.Namespace) -> int:
    from fuzz.ledger.query.unload import Selection
    from fuzz.ledger.transfer import export

    which = Selection(tuple(options.night), tuple(options.session), not options.no_runs)
    with _open(options, create=False) as ledger:
        count = export(ledger, options.out, which)
    print(f"{options.out}: {_sessions(count)}", file=sys.stderr)
    return OK


def import_(options: argparse.Namespace) -> int:
    from fuzz.ledger.ingest.feed import take_in
    from fuzz.ledger.transfer import load

    with _open(options) as ledger:
        for path in options.paths:
            if Path(path).is_dir():
                print(f"{path}: session {take_in(ledger, Path(path))}")
            else:
                print(f"{path}: {_sessions(load(ledger, path))}")
    return OK


def _say(options: argparse.Namespace, kind: EventKind, **said: Any) -> int:
    from fuzz.ledger.ingest.write import write_single
    from fuzz.ledger.query.signatures import signature
    from fuzz.ledger.tables.rows import EventRow

    author = ""
    with suppress(OSError, KeyError):
        author = getpass.getuser()
    with _open(options, create=False) as ledger:
        uid = signature(ledger, options.signature).uid
        write_single(ledger, [EventRow(uuid.uuid4().hex, uid, time.time(), kind, author=author, **said)])
        print(f"{uid}: {signature(ledger, uid).life.state}")
    return OK


def _open(options: argparse.Namespace, *, create: bool = True) -> Ledger:
    """The ledger of a command. Raises LedgerError where users want none."""
    from fuzz.ledger.tables.database import Ledger

    where = chosen(options.ledger)
    if where in NONE:
        raise LedgerError("--ledger: this command needs one, got 'none'")
    return Ledger(where, create=create)


def _sessions(count: int) -> str:
    return f"{count} session{'' if count == 1 else 's'}"


def _console() -> Console:
    return Console() if sys.stdout.isatty() else Console(width=120)
