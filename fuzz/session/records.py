"""A session's folder: what was run, appended line by line, so that a kill loses at most the case in flight.

session.json            Session: settings, machine, environment, when it began
lock                    held while a session runs in the folder (resume.py)
records-<worker>.jsonl  one Record per case, in the order run
faults-<worker>.jsonl   one Fault per case that was not judged, where there are any
notes.txt               what users are to be told once, a line each
settled-<worker>.jsonl  what became of the failures that were met: one Settled per failure that was looked into
compiled.jsonl          the kernels that were compiled for it, or were in the cache (compile_records.py)
claims/                 causes of failures that a worker looks into at this moment (claims.py)
findings/               one corpus entry per new finding (fuzz/corpus/entry.py)
quarantine/             failures that did not show again
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import sys
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from fuzz.core.case import Case, to_json
from fuzz.core.signature import cause, explains
from fuzz.core.verdict import Outcome, Signature, Verdict
from fuzz.session.environment import Environment, environment

MOST = 6  # failures of one raw cause that are looked into
Status: TypeAlias = Literal["", "met", "new", "again", "known", "unconfirmed"]
NOTES = "notes.txt"
T = TypeVar("T")
_PASSWORD = re.compile(r"(://[^/@\s:]*:)[^@\s]*@")  # of a ledger's URL


class Session(msgspec.Struct, frozen=True):
    """Content of session.json.

    settings  the fields of fuzz.session.settings.Settings
    since     seconds of the epoch at which it began
    skip      by file of records: bytes of a session before, in the same folder
    id        of the session, wherever its folder lies; '' in folders of older versions
    night     name that it shares with other sessions of one night: $ATTNFUZZ_NIGHT, or the UTC date of its beginning
    """

    settings: dict[str, Any]
    machine: dict[str, Any]
    since: float = 0.0
    skip: dict[str, int] = {}
    id: str = ""
    night: str = ""
    environment: Environment = Environment()


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One case of a session. `case` is kept in full where the verdict is bad; `seconds` is by phase and 'total'.

    index    its place among the cases of the shard, from 0; -1: not known
    status   of a bad verdict. In a worker's file: 'met', 'known' (in the corpus), 'unconfirmed' (a hang or a crash that
             did not show again). `settle` makes of 'met': 'new', 'again' (as another finding of this session), 'known'
             or 'unconfirmed'
    finding  the finding's file
    before   cases that the same child had run before, the last ones; of the first failures of each cause only
    at       seconds of the epoch
    """

    worker: str
    shard: str
    target: str
    case_id: str
    outcome: Outcome
    seconds: dict[str, float]
    index: int = -1
    features: tuple[str, ...] = ()
    ratio: float = 0.0
    reason: str = ""
    message: str = ""
    signature: Signature | None = None
    status: Status = ""
    finding: str = ""
    case: Case | None = None
    verdict: Verdict | None = None  # with its evidence; in full where it is bad
    calls: tuple[str, ...] = ()  # of the target, as its verdict has them
    before: tuple[Case, ...] = ()
    at: float = 0.0

    @property
    def counts(self) -> bool:
        """True if it makes a session one with findings: it is new, or it is one of wrong numbers that did not show
        again. A hang or a crash that did not may have come from outside."""
        return self.status == "new" or (self.status == "unconfirmed" and self.outcome in ("fail", "flake"))


class Settled(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result of looking into a failure that was met, after the session's cases.

    shard, case_id  of the failure's record
    raw             signature of the failure as it was met
    signature       of the failure as it was saved; it explains other failures that were met
    finding         the file that it was saved in, or that holds the finding that it is one with
    message         summary of the saved case's verdict
    failed, probed  how often it showed, and in how many runs in fresh processes
    note            in how far it was not looked into, for readers; '': in full
    joins           files of other findings that it is one with too: those are one with `finding` then
    minimal         minimising was not cut short: no feature of `signature` is one that the failure can do without
    others          signatures of other failures that its smaller cases showed
    at              seconds of the epoch
    """

    worker: str
    shard: str
    case_id: str
    status: Status
    raw: Signature
    signature: Signature
    finding: str = ""
    message: str = ""
    failed: int = 0
    probed: int = 0
    note: str = ""
    joins: tuple[str, ...] = ()
    minimal: bool = False
    others: tuple[Signature, ...] = ()
    at: float = 0.0

    def of(self, record: Record) -> bool:
        """True if `record` is the failure that was looked into."""
        return (self.shard, self.case_id) == (record.shard, record.case_id)

    def covers(self, record: Record) -> bool:
        """True if `record` is this failure, or one that it explains."""
        found = record.signature
        return self.of(record) or (found is not None and explains(self.signature, found))


class Fault(msgspec.Struct, frozen=True):
    """A case that was not judged, by a fault of the harness, or of the machine."""

    worker: str
    message: str
    case: Case
    at: float  # seconds of the epoch
    machine: bool = False


def write_fault(folder: Path, fault: Fault) -> None:
    """Appends to the faults of a worker."""
    with open(folder / f"faults-{fault.worker}.jsonl", "ab") as file:
        file.write(msgspec.json.encode(fault) + b"\n")


def faults_in(folder: Path, since: float = 0.0, *, machine: bool = False) -> list[str]:
    """A line for each worker that met faults of the harness, or of the machine: how many, what the last one was, and
    the file. since: seconds of the epoch, before which they are of another session in this folder."""
    said = []
    for path in sorted(folder.glob("faults-*.jsonl")):
        every = [msgspec.json.decode(line, type=Fault) for line in path.read_bytes().splitlines()]
        faults = [fault for fault in every if fault.at >= since and fault.machine == machine]
        if not faults:
            continue
        last = faults[-1].message.strip().splitlines()
        count = f"{len(faults)} case{'s were' if len(faults) > 1 else ' was'}"
        if machine:
            said.append(f"{count} not run on this machine, the last one of them for this reason: {last[0]}")
        else:
            said.append(f"{count} not judged, by a fault of the harness ({last[0]} {last[-1]}); please report {path}")
    return said


def write_note(folder: Path, text: str) -> None:
    """Keeps a line for the session's end."""
    with open(folder / NOTES, "ab") as file:
        file.write(text.replace("\n", " ").encode() + b"\n")


def notes_in(folder: Path) -> list[str]:
    """The first of the lines, and how many are like it."""
    try:
        lines = (folder / NOTES).read_text().splitlines()
    except OSError:
        return []
    return [lines[0] + (f" (and {len(lines) - 1} more like it)" if len(lines) > 1 else "")] if lines else []


class Settlement:
    """Results of looking into the failures of a session.

    began  of the session, in seconds of the epoch. What was settled before, in another session in the same folder,
           explains failures of that one only
    """

    def __init__(self, settled: Sequence[Settled], began: float = 0.0) -> None:
        self.settled = _joined(settled)
        self.new = [one for one in self.settled if one.at >= began]
        self.began = began

    def of(self, record: Record) -> Settled | None:
        """The record that `record`, which is 'met', was settled as, or is explained by; None: nobody looked into it."""
        counts = self.new if record.at >= self.began else self.settled
        own = next((one for one in self.settled if one.of(record)), None)
        return own or next((one for one in counts if one.covers(record)), None) or self._enough(counts, record)

    def _enough(self, counts: Sequence[Settled], record: Record) -> Settled | None:
        """The last of many that were looked into for the same raw cause: it stands for the rest."""
        assert record.signature is not None
        alike = [one for one in counts if cause(one.raw) == cause(record.signature)]
        return alike[-1] if len(alike) >= MOST else None

    def apply(self, records: Iterable[Record]) -> list[Record]:
        """`records` with what became of those that were 'met'; those that nobody has looked into stay so."""
        return [self._applied(record) if record.status == "met" else record for record in records]

    def _applied(self, record: Record) -> Record:
        ended = self.of(record)
        if ended is None:
            return record
        if ended.of(record):
            return msgspec.structs.replace(
                record, status=ended.status, finding=ended.finding, message=ended.message, signature=ended.signature
            )
        status: Status = "again" if ended.status == "new" else ended.status
        return msgspec.structs.replace(record, status=status, finding=ended.finding)


def _joined(settled: Sequence[Settled]) -> list[Settled]:
    """Findings that a later failure has shown to be one with another finding are 'again' as that one."""
    one_with: dict[str, str] = {}
    for one in settled:
        for other in one.joins:
            if other != one.finding:
                one_with[other] = one.finding
    return [_joined_to(one, _last(one.finding, one_with)) for one in settled]


def _last(finding: str, one_with: dict[str, str]) -> str:
    seen = {finding}
    while (other := one_with.get(finding)) is not None and other not in seen:
        seen.add(other)
        finding = other
    return finding


def _joined_to(one: Settled, finding: str) -> Settled:
    if finding == one.finding:
        return one
    return msgspec.structs.replace(one, status="again" if one.status == "new" else one.status, finding=finding)


class Recorder:
    """Appends one worker's records, or other lines. Every line is written whole, at once."""

    def __init__(self, folder: Path, worker: str, kind: str = "records") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{kind}-{worker}.jsonl"
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - owned by this object
        if not _ends_with_newline(self.path):  # torn, as by a machine that went down: no record is to be glued to it
            self._file.write(b"\n")

    def add(self, record: Record | Settled) -> None:
        """Appends a line; OSError when the disk is full, leaving no half line behind."""
        line = msgspec.json.encode(record) + b"\n"
        start = os.fstat(self._file.fileno()).st_size
        try:
            if self._file.write(line) != len(line):
                raise OSError(28, "No space left on device", str(self.path))
        except OSError:
            os.ftruncate(self._file.fileno(), start)
            raise

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def settlement(folder: Path) -> Settlement:
    """Results of looking into the failures of the session in `folder`."""
    found = []
    for path in sorted(folder.glob("settled-*.jsonl")):
        for line in path.read_bytes().splitlines():
            with suppress(msgspec.DecodeError):
                found.append(msgspec.json.decode(line, type=Settled))
    return Settlement(sorted(found, key=lambda one: one.at), _began(folder))


def skipped(folder: Path, skip: dict[str, int]) -> list[Record]:
    """Records of a session before in the same folder. skip: as in `Reader`."""
    found = []
    for name, size in skip.items():
        with suppress(OSError), open(folder / name, "rb") as file:
            for line in file.read(size).splitlines():
                with suppress(msgspec.DecodeError):
                    found.append(msgspec.json.decode(line, type=Record))
    return found


class Reader:
    """Follows a folder's records as they grow; each `new` gives what came since. skip: by the name of a file, bytes of
    a session before (`sizes`)."""

    def __init__(self, folder: Path, skip: dict[str, int] | None = None) -> None:
        self.folder = folder
        self.unreadable = 0  # lines that are no record: of another version, or damaged
        self._read = {folder / name: size for name, size in (skip or {}).items()}

    def new(self) -> Iterator[Record]:
        """Records since the last call."""
        return self.decoded(Record)

    def decoded(self, kind: type[T]) -> Iterator[T]:
        """Structs of what came since the last call, of a kind with some of a Record's fields: reading a few takes a
        tenth of the time. A line that is still being written is left for the next call."""
        decoder = msgspec.json.Decoder(kind)
        for path in sorted(self.folder.glob("records-*.jsonl")):
            with open(path, "rb") as file:
                file.seek(self._read.get(path, 0))
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._read[path] = self._read.get(path, 0) + len(line)
                    if line == b"\n":
                        continue
                    try:
                        yield decoder.decode(line)
                    except msgspec.DecodeError:
                        self.unreadable += 1


def whole(folder: Path, part: Record) -> Record:
    """The record as its worker wrote it, of which `part` may lack the verdict; `part`, where it is there no more."""
    decoder, mark = msgspec.json.Decoder(Record), part.case_id.encode()
    with suppress(OSError), open(folder / f"records-{part.worker}.jsonl", "rb") as file:
        for line in file:
            if mark in line:
                with suppress(msgspec.DecodeError):
                    one = decoder.decode(line)
                    if (one.shard, one.index, one.case_id, one.at) == (part.shard, part.index, part.case_id, part.at):
                        return one
    return part


def machine() -> dict[str, Any]:
    """What a result was measured on: CPU, GPU, versions."""
    import torch

    found: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cpus": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "cpu": _cpu_name(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": _PASSWORD.sub(r"\1***@", " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])),
    }
    with suppress(PackageNotFoundError):
        found["triton"] = version("triton")
    if torch.version.cuda and torch.cuda.device_count():
        found["cuda"] = torch.version.cuda
        found["gpu"] = _gpu_name()
    return found


def sizes(folder: Path) -> dict[str, int]:
    """Bytes of the records in a folder, by file."""
    return {path.name: path.stat().st_size for path in folder.glob("records-*.jsonl")}


def write_session(folder: Path, settings: Any) -> Session:
    """Begins a session: writes session.json, which leaves out the records that are there already. `add_machine` adds
    the rest later."""
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)
    night = os.environ.get("ATTNFUZZ_NIGHT") or now.date().isoformat()
    session = Session(
        msgspec.to_builtins(settings), {}, now.timestamp(), sizes(folder), id=uuid.uuid4().hex, night=night
    )
    _write(folder, session)
    return session


def add_machine(
    folder: Path, session: Session, archs: dict[str, str] | None = None, found: dict[str, Any] | None = None
) -> None:
    """Adds machine and environment to session.json. To ask the machine takes a moment: the workers are at work by
    then. archs: as in Environment; found: the machine, None: this one."""
    found = machine() if found is None else found
    _write(folder, msgspec.structs.replace(session, machine=found, environment=environment(archs)))


def _write(folder: Path, session: Session) -> None:
    beside = folder / ".session.json"
    beside.write_text(to_json(session))
    os.replace(beside, folder / "session.json")


def _ends_with_newline(path: Path) -> bool:
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        return not size or file.read(1) == b"\n"


def _began(folder: Path) -> float:
    """Seconds of the epoch at which the session in `folder` began; 0 where nobody knows."""
    try:
        return msgspec.json.decode((folder / "session.json").read_bytes(), type=Session).since
    except (OSError, msgspec.DecodeError):
        return 0.0


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def _gpu_name() -> str:
    import subprocess

    try:
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        return (
            subprocess.run(query, capture_output=True, text=True, timeout=10, check=False).stdout.strip().split("\n")[0]
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
