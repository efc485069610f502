"""A cache that cannot be written is replaced for the time, one that others may write is refused; torn code goes."""

from __future__ import annotations

import os

import pytest

from fuzz.compiling import Cache
from fuzz.compiling import cache as caches
from fuzz.compiling.obtain import NotCompiledHere, obtain
from fuzz.process import cache_folder
from fuzz.process.cache_folder import CacheError, refuse_shared
from oracles.reference.compiled_code import CheckedCode


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_folder_that_others_may_write_is_refused(tmp_path, mode):
    tmp_path.chmod(mode)
    with pytest.raises(CacheError, match=r"other users may write into it.*chmod go-w"):
        Cache(tmp_path)
    tmp_path.chmod(0o755)
    Cache(tmp_path)


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    if tmp_path.stat().st_uid == 0:  # whom everybody trusts
        os.chown(tmp_path, 54321, -1)
    with pytest.raises(CacheError, match="belongs to user"):
        refuse_shared(tmp_path)


def test_folders_are_made_for_this_user_alone_to_write(tmp_path):
    umask = os.umask(0)
    try:
        Cache(tmp_path / "new")
    finally:
        os.umask(umask)
    modes = {(tmp_path / "new" / name).stat().st_mode & 0o022 for name in (".", *caches.FOLDERS)}
    assert modes == {0}


def test_a_full_cache_is_read_and_another_folder_is_written(tmp_path, monkeypatch, toy):
    full, free = tmp_path / "full", tmp_path / "free"
    build = toy("add", value=1)
    cache = Cache(full)
    with cache.locked(build.key), cache.writing(build) as folder:
        for name in caches.FILES:
            (folder / name).write_text(name)
        cache.finish(build, folder, {"seconds": 0.1})
    real = cache_folder.unwritable
    monkeypatch.setattr(
        caches, "unwritable", lambda path: "the disk is full" if full in (path, path.parent) else real(path)
    )
    monkeypatch.setattr(caches, "spare", lambda name: free)
    monkeypatch.setenv("ATTNFUZZ_CACHE", str(full))
    cache = Cache()
    artifact = cache.load(build)
    assert artifact is not None and artifact.folder.is_relative_to(full)
    assert cache.folder == free and f"{full}: the disk is full; kernels that it lacks are compiled into" in cache.notice


def test_what_the_machine_prevents_is_no_fault_of_the_kernel(tmp_path, toy):
    tmp_path.chmod(0o777)
    with pytest.raises(NotCompiledHere, match="other users may write into it"):
        obtain(toy("add", value=99), tmp_path)


def test_torn_files_of_compiled_code_are_removed_and_whole_ones_kept(tmp_path):
    def names():
        return sorted(path.name for path in tmp_path.glob("*.nb?"))

    code = CheckedCode(tmp_path, "*.nb?")
    for name in ("a.nbi", "a.nbc", "b.nbc"):
        (tmp_path / name).write_bytes(b"compiled " + name.encode())
    code.seal()
    CheckedCode(tmp_path, "*.nb?").seal()
    assert names() == ["a.nbc", "a.nbi", "b.nbc"]
    (tmp_path / "a.nbc").write_bytes(b"compil")
    (tmp_path / "late.nbc").write_bytes(b"by a process that was killed before it sealed")
    CheckedCode(tmp_path, "*.nb?").seal()
    assert names() == ["a.nbi", "b.nbc"]
    next(tmp_path.glob("*.json")).write_text("{")
    CheckedCode(tmp_path, "*.nb?").seal()
    assert names() == []


def test_a_torn_object_file_of_the_emulator_is_built_again(tmp_path, monkeypatch):
    from fuzz.devices.emulator.state import intrinsics

    monkeypatch.setattr(intrinsics, "cache_folder", lambda *modules: tmp_path)
    monkeypatch.setattr(intrinsics.llvm, "parse_assembly", lambda text: type("M", (), {"verify": lambda self: None})())
    monkeypatch.setattr(intrinsics, "target_machine", type("T", (), {"emit_object": lambda self, module: b"object"}))
    assert intrinsics._compiled() == b"object"
    (path,) = tmp_path.glob("*.o")
    path.write_bytes(b"obj")
    assert intrinsics._compiled() == b"object"
    assert [one.read_bytes() for one in tmp_path.glob("*.o")] == [b"object"]
