"""A session's folder: what was run, appended line by line, so that a kill loses at most the case in flight.

session.json            Session: settings, machine, versions, when it began
lock                    held while a session runs in the folder (resume.py)
records-<worker>.jsonl  one Record per case, in the order run
faults-<worker>.jsonl   one Fault per case that was not judged, where there are any
notes.txt               what users are to be told once, a line each
claims/                 failures that are being minimised, as they were met (claims.py); empty files: reported
findings/               one corpus entry per new finding (fuzz/corpus/entry.py)
"""

from __future__ import annotations

import datetime
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from fuzz.core.case import Case, to_json
from fuzz.core.verdict import Outcome, Signature, Verdict

NOTES = "notes.txt"


class Session(msgspec.Struct, frozen=True):
    """Content of session.json.

    settings  the fields of fuzz.session.settings.Settings
    since     seconds of the epoch at which it began
    skip      by file of records: bytes of a session before, in the same folder
    """

    settings: dict[str, Any]
    machine: dict[str, Any]
    since: float = 0.0
    skip: dict[str, int] = {}


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One case of a session. `case` is kept in full where the verdict is bad; `seconds` is by phase and 'total'.
    `index`: its place among the cases of the shard, from 0; -1: not known."""

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
    status: str = ""  # of a bad verdict: 'new', 'again' (reported in this session already), 'known' (in the corpus)
    finding: str = ""  # the finding's file
    case: Case | None = None
    verdict: Verdict | None = None  # with its evidence; in full where it is bad
    calls: tuple[str, ...] = ()  # of the target, as its verdict has them


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


class Recorder:
    """Appends one worker's records. Every line is written whole, at once."""

    def __init__(self, folder: Path, worker: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"records-{worker}.jsonl"
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - owned by this object
        if not _ends_with_newline(self.path):  # torn, as by a machine that went down: no record is to be glued to it
            self._file.write(b"\n")

    def add(self, record: Record) -> None:
        """Appends a record; OSError when the disk is full, leaving no half line behind."""
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


class Reader:
    """Follows a folder's records as they grow; each `new` gives what came since. skip: by the name of a file, bytes of
    a session before (`sizes`)."""

    def __init__(self, folder: Path, skip: dict[str, int] | None = None) -> None:
        self.folder = folder
        self.unreadable = 0  # lines that are no record: of another version, or damaged
        self._read = {folder / name: size for name, size in (skip or {}).items()}

    def new(self) -> Iterator[Record]:
        """Records since the last call. A line that is still being written is left for the next one."""
        for path in sorted(self.folder.glob("records-*.jsonl")):
            with open(path, "rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            whole = data.rfind(b"\n") + 1
            self._read[path] = self._read.get(path, 0) + whole
            for line in data[:whole].splitlines():
                if not line:
                    continue
                try:
                    yield msgspec.json.decode(line, type=Record)
                except msgspec.DecodeError:
                    self.unreadable += 1


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
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
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


def write_session(folder: Path, settings: Any, where: dict[str, Any] | None = None) -> Session:
    """Begins a session: writes session.json, which leaves out the records that are there already. where: `machine`;
    None: `add_machine` adds it later."""
    folder.mkdir(parents=True, exist_ok=True)
    session = Session(msgspec.to_builtins(settings), where or {}, time.time(), sizes(folder))
    _write(folder, session)
    return session


def add_machine(folder: Path, session: Session) -> None:
    """Adds `machine` to session.json. To ask the machine takes a moment: the workers are at work by then."""
    _write(folder, msgspec.structs.replace(session, machine=machine()))


def _write(folder: Path, session: Session) -> None:
    beside = folder / ".session.json"
    beside.write_text(to_json(session))
    os.replace(beside, folder / "session.json")


def _ends_with_newline(path: Path) -> bool:
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        return not size or file.read(1) == b"\n"


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
