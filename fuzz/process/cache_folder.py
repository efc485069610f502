"""Folders of compiled code: one that others may write is refused, one that cannot be written is replaced for the time.

Code from such a folder is loaded into this process, so whoever can write there can run code as this user.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

ROOM = 16 << 20  # bytes that must be free


class CacheError(ValueError):
    """A cache of compiled code that cannot be used, or a setting of it that cannot be meant; one line."""


def refuse_shared(folder: Path) -> None:
    """Raises CacheError where `folder` is another user's, or one that other users may write into."""
    try:
        found = folder.stat()
    except OSError:
        return
    fix = f"compiled code from it would run as this user (chmod go-w {folder}, or name another folder)"
    if found.st_uid not in (os.geteuid(), 0):
        raise CacheError(f"{folder}: belongs to user {found.st_uid}: {fix}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CacheError(f"{folder}: other users may write into it: {fix}")


def unwritable(folder: Path) -> str:
    """Reason why nothing can be written into `folder`, which is made if need be, for this user alone to write; ''."""
    try:
        make(folder)
    except OSError as error:
        return error.strerror or str(error)
    if not os.access(folder, os.W_OK | os.X_OK):
        read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
        return "it is on a read-only file system" if read_only else "this user may not write into it"
    found = os.statvfs(folder)
    left = found.f_bavail * found.f_frsize
    return f"the disk is full ({left >> 20} MiB are left, {ROOM >> 20} MiB are needed)" if left < ROOM else ""


def make(folder: Path) -> None:
    """Makes a folder that is not there, so that only this user may write into it. Raises OSError."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(folder.stat().st_mode & ~(stat.S_IWGRP | stat.S_IWOTH))


def spare(name: str) -> Path:
    """The folder that takes the place of one that cannot be written: this user's, in the machine's temporary folder.
    Raises CacheError where that one cannot be written either."""
    folder = Path(tempfile.gettempdir()) / f"attnfuzz-{os.geteuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise CacheError(f"{folder}: cannot be made: {error.strerror or error}") from None
    refuse_shared(folder)
    if why := unwritable(folder / name):
        raise CacheError(f"{folder / name}: {why}")
    return folder / name
