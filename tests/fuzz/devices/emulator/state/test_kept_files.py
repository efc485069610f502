"""Files of a cache folder: whole or not there, and not too many."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fuzz.devices.emulator.state import kept_files


def test_what_was_written_is_read(tmp_path: Path) -> None:
    kept_files.write(tmp_path / "a.o", b"first")
    kept_files.write(tmp_path / "a.o", b"second")
    assert kept_files.read(tmp_path / "a.o") == b"second"
    assert kept_files.read(tmp_path / "b.o") == b""


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:10], lambda data: data[:-1] + b"x"])
def test_a_file_that_is_not_what_was_written_goes(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "a.o"
    kept_files.write(path, b"content")
    path.write_bytes(damage(path.read_bytes()))
    assert kept_files.read(path) == b""
    assert not path.exists()


def test_of_too_many_files_of_a_suffix_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_files, "FILES", 8)
    (tmp_path / "other.program").write_bytes(b"")
    for number in range(9):
        kept_files.write(tmp_path / f"{number}.o", b"content")
        os.utime(tmp_path / f"{number}.o", (number, number))
    assert sorted(path.stem for path in tmp_path.glob("*.o")) == [str(number) for number in range(2, 9)]
    assert (tmp_path / "other.program").exists()


def test_a_folder_that_has_gone_and_a_full_disk_are_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept_files.write(tmp_path / "gone" / "a.o", b"content")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    kept_files.write(tmp_path / "a.o", b"content")
    assert not list(tmp_path.glob("*.o"))
