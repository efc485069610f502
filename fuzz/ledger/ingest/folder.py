"""A session's folder as Batches: what its records, its session.json and its settled failures say to the ledger.

Reads folders of older versions too: what they do not say stays empty, and their id follows from their settings and
their beginning.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import msgspec

from fuzz.core.verdict import Verdict
from fuzz.ledger.errors import LedgerError
from fuzz.ledger.ingest.environment import rows_of
from fuzz.ledger.ingest.settled import Settled, settled_as
from fuzz.ledger.ingest.sums import Sums, spent
from fuzz.ledger.tables.rows import (
    Batch,
    CompileRow,
    FindingRow,
    RunRow,
    SessionRow,
    content_id,
)
from fuzz.session.precompile.compile_records import compiled_in
from fuzz.session.records import Reader, Record, Session

SHARD_PLACES = 1 << 16  # more than a shard has cases
BATCH = 2000  # runs of a batch, at most


class _Failure(msgspec.Struct, frozen=True):
    """A failure until the end of its session, when it is settled. A session may have thousands: the verdict, with its
    evidence, is packed."""

    place: int
    record: Record
    verdict: bytes

    @classmethod
    def of(cls, place: int, record: Record) -> _Failure:
        """A failure without what the ledger has no use for: the cases before it."""
        packed = b"" if record.verdict is None else zlib.compress(msgspec.json.encode(record.verdict))
        return cls(place, msgspec.structs.replace(record, verdict=None, before=()), packed)

    def whole(self) -> Record:
        """The record with its verdict."""
        if not self.verdict:
            return self.record
        verdict = msgspec.json.decode(zlib.decompress(self.verdict), type=Verdict)
        return msgspec.structs.replace(self.record, verdict=verdict)


class Folder:
    """The session of a folder, as it grows. Raises LedgerError where there is none that can be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._session = read_session_file(path)
        self._reader = Reader(path, self._session.skip)
        self._sums = Sums()
        self._seen: set[tuple[str, int]] = set()
        self._failures: list[_Failure] = []
        self._unnumbered = 0
        self._targets: dict[str, None] = {}

    @property
    def unreadable(self) -> int:
        """Lines of the records that are none of this version."""
        return self._reader.unreadable

    def more(self) -> Iterator[Batch]:
        """Batches of the runs since the last call."""
        new = self._unseen()
        while some := list(islice(new, BATCH)):
            self._sums.add([record for _, record in some])
            self._failures += [_Failure.of(place, record) for place, record in some if record.signature is not None]
            self._targets |= dict.fromkeys(record.target for _, record in some)
            yield Batch(self.session(), tuple(_run(place, record) for place, record in some), **self._counts())

    def _unseen(self) -> Iterator[tuple[int, Record]]:
        """Records since the last call, with their places; none twice."""
        for record in self._reader.new():
            place = self._place(record)
            if (record.target, place) not in self._seen:
                self._seen.add((record.target, place))
                yield place, record

    def sums(self, ended: float | None = None) -> Batch:
        """The sums over all cases that `more` gave."""
        return Batch(
            self.session(ended),
            timings=self._sums.timings(),
            coverage=self._sums.coverage(),
            compiles=self._compiles(),
            **self._counts(),
        )

    def end(self) -> Batch:
        """The session after its end: its findings, the failures with their signatures, and the sums."""
        runs: list[RunRow] = []
        findings: dict[str, FindingRow] = {}
        failures = (failure.whole() for failure in self._failures)
        for failure, one in zip(self._failures, settled_as(self.path, self._session, failures), strict=True):
            runs.append(_run(failure.place, one.record, one.signature.id))
            _count(findings, one)
        sums = self.sums(self._ended())
        return msgspec.structs.replace(sums, runs=tuple(runs), findings=tuple(findings.values()))

    def session(self, ended: float | None = None) -> SessionRow:
        """The session itself, as session.json says at this moment."""
        s = self._session = read_session_file(self.path)
        settings, machine, env = s.settings, s.machine, s.environment
        device = str(settings.get("device", ""))
        hardware, toolchain, revision = rows_of(machine, env)
        return SessionRow(
            uid=uid_of(s),
            began=s.since,
            ended=ended,
            night=s.night or datetime.fromtimestamp(s.since, UTC).date().isoformat(),
            device=device,
            seed=int(settings.get("seed", 0)),
            planned=int(settings.get("cases", 0)),
            command=str(machine.get("command", "")),
            folder=str(self.path.absolute()),
            settings=settings,
            archs={name: env.archs.get(name, device) for name in dict.fromkeys([*env.archs, *self._targets])},
            hardware=hardware,
            toolchain=toolchain,
            revision=revision,
        )

    def _counts(self) -> dict:
        return {"tallies": self._sums.tallies()}

    def _compiles(self) -> tuple[CompileRow, ...]:
        sums: dict[tuple[str, str], tuple[int, float]] = {}
        for one in compiled_in(self.path):
            count, seconds = sums.get((one.arch, one.status), (0, 0.0))
            sums[one.arch, one.status] = (count + 1, seconds + one.seconds)
        return tuple(CompileRow(*key, *value) for key, value in sorted(sums.items()))

    def _ended(self) -> float | None:
        """Time of the last record; None: there is none."""
        files = [path for kind in ("records", "settled") for path in self.path.glob(f"{kind}-*.jsonl")]
        return max((path.stat().st_mtime for path in files), default=None)

    def _place(self, record: Record) -> int:
        shard = record.shard.rpartition("-")[2]
        if 0 <= record.index < SHARD_PLACES and shard.isdecimal():
            return int(shard) * SHARD_PLACES + record.index
        self._unnumbered += 1
        return -self._unnumbered


def read_session_file(folder: Path) -> Session:
    """session.json of a folder. Raises LedgerError."""
    path = folder / "session.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Session)
    except OSError as error:
        raise LedgerError(f"{folder}: no session's folder: {path.name} {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise LedgerError(f"{path}: not of a session that this version can read: {error}") from None


def uid_of(session: Session) -> str:
    """The id of a session, wherever its folder lies."""
    settings = {name: value for name, value in session.settings.items() if name != "folder"}
    return session.id or content_id([settings, session.since])


def _run(place: int, record: Record, signature: str = "") -> RunRow:
    return RunRow(
        target=record.target,
        place=place,
        case_id=record.case_id,
        outcome=record.outcome,
        ratio=record.ratio,
        seconds=spent(record),
        features=record.features,
        signature=signature,
    )


def _count(rows: dict[str, FindingRow], one: Settled) -> None:
    """Adds a failure to the row of its signature, which says how many cases it explains."""
    key = one.signature.id
    before = rows.get(key)
    if before is not None and not one.own:
        rows[key] = msgspec.structs.replace(before, met=before.met + 1)
    else:
        rows[key] = one.row(before.met + 1 if before else 1)
