"""Cache: compiled kernels in a folder that many processes share. An artifact is there whole, or it is not there.

    <folder>/artifacts/<key>/   header.json, kernel.o, kernel.h (the C interface of its host function), kernel.ptx
    <folder>/failures/<key>.json   why the last attempt at a key failed, with the compiler's output
    <folder>/locks/<key>        held (flock) by the one process that builds the key; a lock dies with its holder
    <folder>/building/<key>.*   being written; what lies here without a holder of the lock is a corpse, see `sweep`

A finished folder is renamed into place. The header holds the digests of the files, so that also a torn copy (a full
disk, a machine that went down) is seen, removed and built again. Every change of the sources makes new keys: `prune`
keeps the artifacts within $ATTNFUZZ_CACHE_GIB, and removes the failures and the locks of keys that are long gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.compiling.build_key import FORMAT, Build, toolchain
from fuzz.process.cache_folder import CacheError, make, refuse_shared, spare, unwritable

OBJECT, INTERFACE, PTX, HEADER = "kernel.o", "kernel.h", "kernel.ptx", "header.json"
FILES = (OBJECT, INTERFACE, PTX)
FOLDERS = ("artifacts", "failures", "locks", "building")
IDLE = 24 * 3600.0
OLD = 30 * IDLE  # of failures and locks


def prefix(key: str) -> str:
    """Prefix of the functions in the object file: unique, because several objects are loaded into one process."""
    return f"attnfuzz_{key}"


@dataclass(frozen=True)
class Artifact:
    """A compiled kernel on disk. `header` is the JSON header: recipe, options, arch, entries, seconds, digests …"""

    folder: Path
    header: dict[str, Any]

    @property
    def object(self) -> Path:
        """The object file: the host launch function, and the device code in it."""
        return self.folder / OBJECT

    @property
    def ptx(self) -> Path:
        """The PTX."""
        return self.folder / PTX


@dataclass(frozen=True)
class Failure:
    """An attempt at a key that failed: in one line, and the compiler's output. machine: not by the kernel's doing, nor
    the compiler's: a full disk, a process that was killed."""

    why: str
    log: str
    seconds: float = 0.0
    machine: bool = False


def default_folder() -> Path:
    """$ATTNFUZZ_CACHE, or attnfuzz/ in the user's cache folder. Raises CacheError where there is no such user."""
    named = os.environ.get("ATTNFUZZ_CACHE")
    if named:
        return Path(named)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attnfuzz"
    except RuntimeError:  # a number without a name, as in some containers
        raise CacheError("ATTNFUZZ_CACHE: must name a folder for compiled kernels, as this user has no home") from None


class Cache:
    """The artifacts of one folder. Safe from any number of processes and machines of one user that share it.

    folder  None: default_folder(); where that cannot be written, or its disk is full, artifacts are still read from it,
            and written into this user's folder for temporary files. `notice` says so, in a line
    Raises CacheError for a folder that other users may write into, and where nothing can be written.
    """

    def __init__(self, folder: Path | str | None = None) -> None:
        self.most = _most()
        self.folder = Path(folder) if folder is not None else default_folder()
        self._also = self.folder  # where artifacts are read from
        self.notice = ""
        refuse_shared(self.folder)
        if why := unwritable(self.folder):
            if folder is not None:
                raise CacheError(f"{self.folder}: {why}")
            self.folder = spare("kernels")
            self.notice = f"{self._also}: {why}; kernels that it lacks are compiled into {self.folder}"
        for name in FOLDERS:
            make(self.folder / name)
        for place in {self.folder, self._also}:
            refuse_shared(place / "artifacts")

    def load(self, build: Build) -> Artifact | None:
        """The artifact of a key, or None: there is none, or what is there is torn or of another format."""
        return self._load(self._place(build.key), build) or (
            self._load(self._also / "artifacts" / build.key, build) if self._also != self.folder else None
        )

    def _load(self, folder: Path, build: Build) -> Artifact | None:
        try:
            header = json.loads((folder / HEADER).read_bytes())
            whole = header["key"] == build.key and header["format"] == FORMAT
            whole = whole and all(_digest(folder / name) == header["files"][name] for name in FILES)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if not whole:
            return None
        with contextlib.suppress(OSError):
            os.utime(folder)  # when it was last used, for `prune`
        return Artifact(folder, header)

    def prune(self, most: int | None = None, idle: float = IDLE) -> int:
        """Removes artifacts, the least recently used first, until `most` bytes are left; returns the bytes removed.
        Also what killed builds left, and failures and locks that are a month old.

        What was used within `idle` seconds stays, whatever its size: a process may be about to read it. `most` is
        $ATTNFUZZ_CACHE_GIB (4) by default.
        """
        self.sweep()
        self._forget(time.time() - OLD)
        most = self.most if most is None else most
        found = []
        for folder in (self.folder / "artifacts").iterdir():
            with contextlib.suppress(OSError):  # another process was quicker
                size = sum(file.stat().st_size for file in folder.iterdir())
                found.append((folder.stat().st_mtime, size, folder))
        total, removed = sum(size for _, size, _ in found), 0
        for used, size, folder in sorted(found):
            if total - removed <= most or used > time.time() - idle:
                break
            grave = self.folder / "building" / f"{folder.name}.pruned"
            with contextlib.suppress(OSError):
                folder.rename(grave)
                shutil.rmtree(grave, ignore_errors=True)
                removed += size
        return removed

    def failure(self, build: Build) -> Failure | None:
        """Reason why the last attempt at a key failed, if that is how it ended."""
        try:
            found = json.loads((self.folder / "failures" / f"{build.key}.json").read_bytes())
            return Failure(found["why"], found["log"], found["seconds"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def sweep(self, keys: Sequence[str] | None = None) -> bool:
        """Removes what killed builds of `keys` (all) left; False where another process holds one of them."""
        patterns, free = ["*"] if keys is None else [f"{key}.*" for key in keys], True
        for corpse in [found for pattern in patterns for found in (self.folder / "building").glob(pattern)]:
            with contextlib.suppress(OSError):  # another process was quicker
                number = self._lock(corpse.name.partition(".")[0], wait=False)
                if number is None:
                    free = False
                    continue
                shutil.rmtree(corpse, ignore_errors=True)
                os.close(number)
        return free

    def _forget(self, before: float) -> None:
        """Removes failures and free locks that are older."""
        for place in (*(self.folder / "failures").iterdir(), *(self.folder / "locks").iterdir()):
            with contextlib.suppress(OSError):
                if place.stat().st_mtime > before:
                    continue
                if place.parent.name == "failures":
                    place.unlink()
                elif (number := self._lock(place.name, wait=False)) is not None:
                    place.unlink()
                    os.close(number)

    def _lock(self, key: str, wait: bool) -> int | None:
        """The key's lock, to be closed; None where it is another's and is not waited for."""
        place = self.folder / "locks" / key
        while True:
            number = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(number, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                if _same(place, number):
                    return number
            except BlockingIOError:
                os.close(number)
                return None
            except BaseException:
                os.close(number)
                raise
            os.close(number)  # `_forget` removed it meanwhile: it locks nothing

    @contextlib.contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """Waits until no other process builds `key`, and keeps others from it. Corpses of the key are removed."""
        number = self._lock(key, wait=True)
        assert number is not None
        try:
            for corpse in (self.folder / "building").glob(f"{key}.*"):
                shutil.rmtree(corpse, ignore_errors=True)
            yield
        finally:
            os.close(number)

    @contextlib.contextmanager
    def writing(self, build: Build) -> Iterator[Path]:
        """A fresh folder for the files of `build`, to be given to `finish`. Needs the key's lock."""
        folder = Path(tempfile.mkdtemp(prefix=f"{build.key}.", dir=self.folder / "building"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def finish(self, build: Build, written: Path, facts: dict[str, Any]) -> Artifact:
        """Seals the files in `written` with a header and moves them into place. Needs the key's lock."""
        header = {
            "key": build.key,
            "format": FORMAT,
            "recipe": build.recipe,
            "options": json.loads(build.options),
            "arch": build.arch,
            "sources": build.sources,
            "toolchain": toolchain(),
            "prefix": prefix(build.key),
            "files": {name: _digest(written / name) for name in FILES},
            **facts,
        }
        (written / HEADER).write_text(json.dumps(header, indent=2) + "\n")
        umask = os.umask(0)
        os.umask(umask)
        written.chmod(0o755 & ~umask)  # mkdtemp's is for the user alone
        place = self._place(build.key)
        if place.exists():  # torn: `load` refused it
            place.rename(written / "torn")
        written.rename(place)
        shutil.rmtree(place / "torn", ignore_errors=True)
        (self.folder / "failures" / f"{build.key}.json").unlink(missing_ok=True)
        return Artifact(place, header)

    def failed(self, build: Build, failure: Failure) -> None:
        """Keeps why `build` failed, for users and for `failure`."""
        text = json.dumps({"name": build.name, "recipe": build.recipe, **failure.__dict__}, indent=2)
        place = self.folder / "failures" / f"{build.key}.json"
        beside = place.with_suffix(f".{os.getpid()}")
        try:
            beside.write_text(text + "\n")
            os.replace(beside, place)
        finally:
            beside.unlink(missing_ok=True)

    def _place(self, key: str) -> Path:
        return self.folder / "artifacts" / key


def _most() -> int:
    text = os.environ.get("ATTNFUZZ_CACHE_GIB", "4")
    try:
        gib = float(text)
    except ValueError:
        gib = 0.0
    if not 0 < gib < math.inf:
        raise CacheError(f"ATTNFUZZ_CACHE_GIB: must be a positive number, got {text!r}")
    return int(gib * (1 << 30))


def _same(place: Path, number: int) -> bool:
    try:
        return os.path.samestat(place.stat(), os.fstat(number))
    except FileNotFoundError:
        return False


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
