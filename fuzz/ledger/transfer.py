"""JSON Lines: a ledger, or some nights of it, as a file; and back. Machines without a database take part with it.

The first line names the format and its version. Every other line is one struct with its `type`: signatures first, then
each session with its findings and sums, followed by its runs, some hundred a line; then replays, events, bisections,
measurements. Names of features and targets stand once a line, and a run is a list that points at them. Reading a file
twice writes the same rows twice, which counts once.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeAlias

import msgspec

from fuzz.core.verdict import Signature
from fuzz.ledger.errors import LedgerError
from fuzz.ledger.grouping import grouped
from fuzz.ledger.ingest.write import write, write_single
from fuzz.ledger.query.unload import Selection, sessions_of, signatures_of, singles_of
from fuzz.ledger.tables.database import Ledger
from fuzz.ledger.tables.rows import Batch, BisectionRow, EventRow, MeasurementRow, ReplayRow, RunRow

FORMAT, VERSION = "attnfuzz-ledger", 1


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line."""

    format: str
    version: int


class SignatureLine(msgspec.Struct, frozen=True, tag="signature"):
    """A signature, by its first finding's."""

    signature: Signature


class SessionLine(msgspec.Struct, frozen=True, tag="session"):
    """A session with its findings and sums."""

    batch: Batch


class RunsLine(msgspec.Struct, frozen=True, tag="runs"):
    """Runs of the session of the line before, each a list: [place in `targets`, place in the shard, case's id, outcome,
    ratio, seconds, places in `features`, place in `signatures` or -1]."""

    session: str
    targets: tuple[str, ...]
    features: tuple[str, ...]
    signatures: tuple[str, ...]
    runs: tuple[tuple[int, int, str, str, float, float, tuple[int, ...], int], ...]


Line: TypeAlias = SignatureLine | SessionLine | RunsLine | ReplayRow | EventRow | BisectionRow | MeasurementRow


def export(ledger: Ledger, path: str, which: Selection) -> int:
    """Writes a ledger to a file, compressed if its name ends with .gz; '-': to standard output. Returns the number of
    sessions."""
    count = 0
    with _open(path, "wb") as file:
        file.write(msgspec.json.encode(Header(FORMAT, VERSION)) + b"\n")
        for line in _lines(ledger, which):
            count += isinstance(line, SessionLine)
            file.write(msgspec.json.encode(line) + b"\n")
    return count


def load(ledger: Ledger, path: str) -> int:
    """Reads what `export` wrote into a ledger; returns the number of sessions.

    Raises LedgerError with the number of the line for a file that is none of this version, or ends too early; what came
    before that line is in the ledger then.
    """
    number = count = 0
    session: Batch | None = None
    try:
        with _open(path, "rb") as file:
            for number, text in enumerate(file, 1):
                if number == 1:
                    _check(msgspec.json.decode(text, type=Header), path)
                    continue
                line = msgspec.json.decode(text, type=Line)
                if isinstance(line, SessionLine):
                    session, count = line.batch, count + 1
                _take(ledger, line, session)
    except (msgspec.MsgspecError, EOFError, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise LedgerError(f"{path}: line {max(number, 1)}: {error}") from None
    except KeyError as error:
        raise LedgerError(f"{path}: line {number}: about the signature {error}, which no line before it has") from None
    if not number:
        raise LedgerError(f"{path}: is empty")
    return count


def _lines(ledger: Ledger, which: Selection) -> Iterator[Line]:
    for found in signatures_of(ledger):
        yield SignatureLine(found)
    for batch, runs in sessions_of(ledger, which):
        yield SessionLine(batch)
        for some in runs:
            yield _packed(batch.session.uid, some)
    yield from singles_of(ledger, which)


def _take(ledger: Ledger, line: Line, session: Batch | None) -> None:
    match line:
        case SignatureLine(signature):
            with ledger.write() as connection:
                grouped(connection, [signature], ledger.names.targets(connection, [signature.target]))
        case SessionLine(batch):
            write(ledger, batch)
        case RunsLine():
            if session is None or session.session.uid != line.session:
                raise msgspec.ValidationError(f"runs of session {line.session} do not follow it")
            write(ledger, Batch(session.session, _unpacked(line)))
        case _:
            write_single(ledger, [line])


def _packed(session: str, runs: Iterable[RunRow]) -> RunsLine:
    targets: dict[str, int] = {}
    features: dict[str, int] = {}
    signs: dict[str, int] = {}
    packed = tuple(
        (
            targets.setdefault(run.target, len(targets)),
            run.place,
            run.case_id,
            run.outcome,
            run.ratio,
            run.seconds,
            tuple(features.setdefault(name, len(features)) for name in run.features),
            signs.setdefault(run.signature, len(signs)) if run.signature else -1,
        )
        for run in runs
    )
    return RunsLine(session, tuple(targets), tuple(features), tuple(signs), packed)


def _unpacked(line: RunsLine) -> tuple[RunRow, ...]:
    try:
        return tuple(
            RunRow(
                target=line.targets[target],
                place=place,
                case_id=case_id,
                outcome=outcome,
                ratio=ratio,
                seconds=seconds,
                features=tuple(line.features[at] for at in features),
                signature=line.signatures[sign] if sign >= 0 else "",
            )
            for target, place, case_id, outcome, ratio, seconds, features, sign in line.runs
        )
    except IndexError:
        raise msgspec.ValidationError("a run points at a name that the line does not have") from None


def _check(header: Header, path: str) -> None:
    if header.format != FORMAT:
        raise LedgerError(f"{path}: no export of a ledger, but {header.format!r}")
    if header.version != VERSION:
        raise LedgerError(f"{path}: of version {header.version}; this program reads version {VERSION}")


@contextmanager
def _open(path: str, mode: str) -> Iterator[IO[bytes]]:
    """A file, or standard input and output; a file appears under its name once it is whole."""
    if path == "-":
        yield sys.stdout.buffer if "w" in mode else sys.stdin.buffer
        return
    place = Path(path)
    beside = place.with_name(f".{place.name}.part") if "w" in mode else place
    opened = gzip.open if path.endswith(".gz") else open
    with opened(beside, mode) as file:
        yield file  # type: ignore[misc]
    if beside != place:
        beside.replace(place)
