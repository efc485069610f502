"""Reading and writing the files of a corpus.

Files are written whole or not at all, and never over another: `save` links a finished temporary file to its name, which
comes from the signature, so that two workers with one finding leave one file.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import time
from pathlib import Path
from typing import Any

import msgspec

from fuzz.core.case import Case, CaseError, decode, from_json, read, to_json
from fuzz.corpus.entry import CorpusError, Entry, file_name

STALE_SECONDS = 3600.0


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


def load_good(folder: Path | str) -> tuple[list[Entry], list[str]]:
    """Every entry of `folder` that can be read, by name, and a line for each that cannot. No such folder: none."""
    good, bad = [], []
    for path in sorted(Path(folder).iterdir()) if Path(folder).is_dir() else ():
        if is_entry(path):
            try:
                good.append(load(path))
            except CorpusError as error:
                bad.append(str(error))
    return good, bad


def unreadable_in(folder: Path | str) -> list[str]:
    """A line for each file of a corpus that cannot be read; '' is no folder."""
    return load_good(folder)[1] if folder else []


def is_entry(path: Path) -> bool:
    """True if a file of a corpus is an entry by its name: no temporary file, and no bare case that `attnfuzz minimize`
    wrote beside one."""
    return path.suffix == ".json" and not path.name.startswith(".") and not path.name.endswith(".min.json")


def load_before(path: Path | str) -> tuple[Case, ...]:
    """The cases that have to be run before the case of a file, in the same process, for it to fail; most have none.
    Raises CaseError or CorpusError."""
    return load(path).after if _holds_entry(read(path)) else ()


def load_case(path: Path | str) -> Case:
    """The case of a file that holds either a case or an entry. Raises CaseError or CorpusError."""
    text = read(path)
    return load(path).case if _holds_entry(text) else from_json(text, where=str(path))


def _holds_entry(text: bytes) -> bool:
    """True if a file's text is an entry, and not a bare case."""
    try:
        return "case" in msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


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
