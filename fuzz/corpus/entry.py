"""The corpus: one readable JSON file per case, with what is expected of it and why. Load, save, replay, distil.

An Entry needs neither a generator nor its seeds. Three kinds, by `expect` and `explanation`:
    expect 'pass'                   must pass; anything else fails a run
    expect a failure, explained     known: fails as described, which is no news; passing is, and fails a run
    expect a failure, unexplained   a finding that nobody has looked at: counts as new until `explanation` is written
Files are written whole or not at all, and never over another: `save` links a finished temporary file to its name, which
comes from the signature, so that two workers with one finding leave one file.
"""

from __future__ import annotations

import datetime
import errno
import json
import math
import os
import platform
import re
import secrets
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from fuzz.core.case import Case, CaseError, decode, from_json, read, to_json
from fuzz.core.signature import explains, signature
from fuzz.core.verdict import Outcome, Signature, Verdict, summary
from fuzz.minimize import Minimized

VERSION = 1
ANY_TARGET = "TARGET"  # stands for the target's name in a case that every target should pass
STALE_SECONDS = 3600.0
PACKAGES = ("torch", "triton", "nvidia-cutlass-dsl")

Status: TypeAlias = Literal["pass", "known", "new", "fail", "unexpected_pass", "skip"]
OK: frozenset[str] = frozenset({"pass", "known", "skip"})


class CorpusError(ValueError):
    """A file of the corpus that cannot be read, written or used; one line that names the file and the field."""


class Found(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """When and where a failure was found, and how often it showed: in `failed` of `probed` runs."""

    date: str = ""
    device: str = ""
    versions: dict[str, str] = {}
    failed: int = 0
    probed: int = 0


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One file of the corpus.

    version      of the format
    expect       'pass', or the outcome that is known
    source       where the case comes from: a report, a publication, a session
    explanation  why it fails, for people; empty: nobody knows yet
    case         what to run; target ANY_TARGET: whatever target is asked about
    signature    of the failure; none for 'pass'
    found, runs  when and where, and how many runs the reduction took
    name         the file's name; not part of the content
    """

    version: int
    expect: Outcome
    source: str = ""
    explanation: str = ""
    case: Case
    signature: Signature | None = None
    found: Found | None = None
    runs: int = 0
    name: str = ""

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(f"version: this program reads version {VERSION}, got {self.version}")
        if self.expect == "reject":
            raise ValueError("expect: must be 'pass' or a failure, got 'reject'")
        if self.expect == "pass" and self.signature is not None:
            raise ValueError("signature: a case that must pass has none")
        if self.expect != "pass" and self.signature is None:
            raise ValueError(f"signature: is missing, and expect is '{self.expect}'")

    @property
    def known(self) -> bool:
        """Whether it is a failure that somebody has explained."""
        return self.expect != "pass" and bool(self.explanation.strip())

    @classmethod
    def of(cls, minimized: Minimized, *, device: str, source: str = "fuzzing session") -> Entry:
        """The entry of a minimised failure, not yet explained."""
        found = Found(
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            device=device,
            versions=dict(_versions()),
            failed=minimized.failed,
            probed=minimized.probed,
        )
        return cls(
            version=VERSION,
            expect=minimized.verdict.outcome,
            case=minimized.case,
            source=source,
            signature=minimized.signature,
            found=found,
            runs=minimized.runs,
        )


def file_name(entry: Entry) -> str:
    """`entry.name`, or a name for people that ends with the signature's id: equal findings have equal names."""
    if entry.name:
        return entry.name
    if entry.signature is None:
        return f"{_slug(entry.case.target)}_{entry.case.id}.json"
    s = entry.signature
    words = [s.target, s.kind, *s.tensors[:2], *s.features[:3]]
    return "_".join(filter(None, map(_slug, words)))[:100] + f"_{s.id}.json"


def encode(entry: Entry) -> str:
    """The file's text: readable JSON, lists of numbers on one line, without the name."""
    return _layout(json.loads(to_json(msgspec.structs.replace(entry, name=""))), "\n") + "\n"


def save(entry: Entry, folder: Path | str) -> Path:
    """Writes `entry` into `folder` (made if need be) and returns its path; a file of that name is left as it is.

    Raises CorpusError, for a full disk too; then nothing is left behind. A killed process leaves at most a temporary
    file, which nobody reads and which a later `save` removes.
    """
    folder = Path(folder)
    path = folder / file_name(entry)
    temporary = folder / f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _clean(folder)
        if path.exists():
            return path
        try:
            _write(temporary, encode(entry))
            _publish(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        _sync(folder)
    except OSError as error:
        raise CorpusError(f"{path}: cannot be saved: {error.strerror or error}") from None
    return path


def load(path: Path | str) -> Entry:
    """Reads one entry. Raises CorpusError: '<file>: <field>: what is wrong'."""
    try:
        entry = decode(read(path), Entry, where=str(path))
    except CaseError as error:
        raise CorpusError(str(error)) from None
    return msgspec.structs.replace(entry, name=Path(path).name)


def load_all(folder: Path | str) -> list[Entry]:
    """Every entry of `folder`, by name. Raises CorpusError on the first that is bad."""
    folder = Path(folder)
    if not folder.is_dir():
        raise CorpusError(f"{folder}: no such folder")
    return [load(path) for path in sorted(folder.iterdir()) if is_entry(path)]


def is_entry(path: Path) -> bool:
    """Whether a file of a corpus is an entry by its name: no temporary file, and no bare case that `attnfuzz minimize`
    wrote beside one."""
    return path.suffix == ".json" and not path.name.startswith(".") and not path.name.endswith(".min.json")


def load_case(path: Path | str) -> Case:
    """The case of a file that holds either a case or an entry. Raises CaseError or CorpusError."""
    text = read(path)
    try:
        is_entry = "case" in msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        is_entry = False
    return load(path).case if is_entry else from_json(text, where=str(path))


def known(found: Signature, entries: Iterable[Entry]) -> Entry | None:
    """The explained entry that accounts for a failure, or None. Unexplained ones account for nothing: they are new."""
    return next((e for e in entries if e.known and e.signature is not None and explains(e.signature, found)), None)


def distil(entries: Iterable[Entry]) -> list[Entry]:
    """`entries` without those that another one explains; one with an explanation is kept first. 'pass' entries stay."""
    kept: list[Entry] = []
    for entry in sorted(entries, key=lambda e: (not e.known, len(e.signature.features) if e.signature else 0, e.name)):
        mine = entry.signature
        if mine is None or not any(e.signature is not None and explains(e.signature, mine) for e in kept):
            kept.append(entry)
    return sorted(kept, key=lambda e: e.name)


class Replay(msgspec.Struct, frozen=True):
    """What became of an entry: pass; known (fails as it says); new (fails, nobody knows why); fail (otherwise than it
    says); unexpected_pass (it says that it fails, and it does not); skip."""

    entry: Entry
    status: Status
    reason: str = ""
    verdict: Verdict | None = None
    runs: int = 0

    @property
    def ok(self) -> bool:
        """Whether it lets a run pass."""
        return self.status in OK


def replay(entry: Entry, run_case: Callable[[Case], Verdict]) -> Replay:
    """Runs an entry's case and compares. One that fails now and then gets more runs, so that a miss is one in fifty."""
    runs, verdict = 0, run_case(entry.case)
    for runs in range(1, _attempts(entry) + 1):
        if runs > 1:
            verdict = run_case(entry.case)
        if verdict.bad:
            break
    status, reason = _compare(entry, verdict)
    return Replay(entry, status, reason, verdict, runs)


def _compare(entry: Entry, verdict: Verdict) -> tuple[Status, str]:
    if verdict.outcome == "reject":
        return "skip", verdict.reason or "the target refuses it"
    if not verdict.bad:
        if entry.expect == "pass":
            return "pass", ""
        return (
            "unexpected_pass",
            f"{entry.name or entry.case.id} says '{entry.expect}', but it passes: is the bug gone?",
        )
    if entry.expect == "pass":
        return "fail", summary(verdict)
    assert entry.signature is not None
    if not explains(entry.signature, signature(entry.case, verdict)):
        return "fail", f"fails otherwise than {entry.name or entry.case.id} says: {summary(verdict)}"
    return ("known", entry.explanation) if entry.known else ("new", f"not explained yet: {summary(verdict)}")


def _attempts(entry: Entry) -> int:
    """Runs until an entry counts as passing; one, but for a failure that showed only now and then."""
    found = entry.found
    if entry.expect == "pass" or found is None or not 0 < found.failed < found.probed:
        return 1
    return min(20, math.ceil(math.log(0.02) / math.log(1 - found.failed / found.probed)))


def _layout(value: Any, newline: str) -> str:
    """JSON, indented, but for lists of numbers (and lists of such lists) that fit on a line."""
    flat = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or not value or (len(flat) <= 100 and not set(flat) & set('{"')):
        return flat
    inner = newline + "  "
    if isinstance(value, list):
        return "[" + ",".join(inner + _layout(part, inner) for part in value) + newline + "]"
    return (
        "{" + ",".join(f"{inner}{json.dumps(k)}: {_layout(part, inner)}" for k, part in value.items()) + newline + "}"
    )


def _slug(text: str) -> str:
    """`text` as part of a file name."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text.replace("<", "-lt-").replace(">", "-gt-")).strip("-.")


@lru_cache(maxsize=1)
def _versions() -> tuple[tuple[str, str], ...]:
    found = [("python", platform.python_version())]
    for name in PACKAGES:
        try:
            found.append((name, version(name)))
        except PackageNotFoundError:
            continue
    return tuple(found)


def _write(path: Path, text: str) -> None:
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _publish(temporary: Path, path: Path) -> None:
    """Gives a finished file its name, unless there is one: then that of another worker stays."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        temporary.rename(path)  # a file system without links: the last of two equal findings stays


def _sync(folder: Path) -> None:
    """Makes the new name last; not every file system lets a folder be synced."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _clean(folder: Path) -> None:
    """Removes temporary files that a killed process left."""
    old = time.time() - STALE_SECONDS
    for path in folder.glob(".*.tmp"):
        try:
            if path.stat().st_mtime < old:
                path.unlink()
        except OSError:
            continue
