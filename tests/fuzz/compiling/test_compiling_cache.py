"""The cache: what is torn, stale or another's is never loaded."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from fuzz.compiling import Build, Cache, Pool
from fuzz.compiling import build_key as keys
from fuzz.compiling.cache import OLD, CacheError, Failure


def stored(cache: Cache, build: Build) -> Path:
    """An artifact with made-up files, stored as a worker stores one."""
    with cache.locked(build.key), cache.writing(build) as folder:
        (folder / "kernel.o").write_bytes(b"object")
        (folder / "kernel.h").write_text("interface")
        (folder / "kernel.ptx").write_text("ptx")
        return cache.finish(build, folder, {"seconds": 0.1}).folder


def test_an_artifact_comes_back_with_its_header(cache: Cache, toy) -> None:
    build = toy("add", value=1)
    assert cache.load(build) is None
    stored(cache, build)
    artifact = cache.load(build)
    assert artifact is not None
    assert artifact.header["options"] == {"value": 1} and artifact.header["recipe"] == "toy_kernels:add"
    assert not any((cache.folder / "building").iterdir())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "kernel.o").write_bytes(b"obje"),
        lambda folder: (folder / "kernel.ptx").unlink(),
        lambda folder: (folder / "header.json").write_text('{"key": '),
        lambda folder: (folder / "header.json").write_text("{}"),
        lambda folder: (folder / "header.json").unlink(),
    ],
)
def test_a_torn_artifact_is_not_loaded_and_is_replaced(cache: Cache, toy, spoil) -> None:
    build = toy("add", value=1)
    spoil(stored(cache, build))
    assert cache.load(build) is None
    stored(cache, build)
    assert cache.load(build) is not None
    assert sorted(path.name for path in (cache.folder / "artifacts" / build.key).iterdir()) == [
        "header.json",
        "kernel.h",
        "kernel.o",
        "kernel.ptx",
    ]


def test_an_artifact_of_another_format_is_not_loaded(cache: Cache, toy) -> None:
    build = toy("add", value=1)
    folder = stored(cache, build)
    header = json.loads((folder / "header.json").read_text()) | {"format": keys.FORMAT + 1}
    (folder / "header.json").write_text(json.dumps(header))
    assert cache.load(build) is None


def test_the_key_changes_with_sources_options_arch_and_toolchain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "some_kernel"
    (package / "parts").mkdir(parents=True)
    for name in ("__init__.py", "recipe.py", "parts/tiles.py"):
        (package / name).write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))

    def key(options: dict = {"tile": 64}, arch: str = "sm_80") -> str:  # noqa: B006 (read only)
        keys.digest.cache_clear()
        keys.toolchain.cache_clear()
        return Build.of("some_kernel.recipe:build", options, arch, ("some_kernel",)).key

    seen = [key(), key(options={"tile": 128}), key(arch="sm_90a")]
    (package / "parts" / "tiles.py").write_text("TILE = 128\n")
    seen.append(key())
    (package / "parts" / "new.py").write_text("")
    seen.append(key())
    monkeypatch.setattr(keys, "_version", lambda name: "5.0")
    seen.append(key())
    assert len(set(seen)) == len(seen)
    assert key() == seen[-1]
    monkeypatch.undo()
    keys.digest.cache_clear()
    keys.toolchain.cache_clear()


def test_sources_that_change_while_a_session_runs_are_a_failure_and_not_a_stale_artifact(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "edited_recipe.py"
    module.write_text("def build(options, arch):\n    return None\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    build = Build.of("edited_recipe:build", {}, "sm_80")
    assert build.key
    module.write_text("def build(options, arch):\n    return 1\n")
    with Pool(cache) as pool:
        (ended,) = pool.build([build])
    assert ended.status == "failed" and "changed while the session ran" in ended.why
    assert "edited_recipe" not in sys.modules


def test_a_bad_build_names_the_field() -> None:
    with pytest.raises(ValueError, match="arch: must be one of sm_80"):
        Build("a:b", "{}", "sm_75")
    with pytest.raises(ValueError, match="recipe: must be 'module:function'"):
        Build("a.b", "{}", "sm_80")


def test_the_least_recently_used_go_first_and_what_is_in_use_stays(cache: Cache, toy, monkeypatch) -> None:
    builds = [toy("add", value=value) for value in range(4)]
    folders = [stored(cache, build) for build in builds]
    size = sum(file.stat().st_size for file in folders[0].iterdir())
    for age, folder in enumerate(reversed(folders)):
        os.utime(folder, (time.time() - 1000 * (age + 1),) * 2)
    assert cache.load(builds[0]) is not None  # the oldest is used again
    assert cache.prune(2 * size + 2, idle=60.0) == pytest.approx(2 * size, abs=8)
    assert [cache.load(build) is not None for build in builds] == [True, False, False, True]
    assert cache.prune(1, idle=60.0) == 0  # all in use
    monkeypatch.setenv("ATTNFUZZ_CACHE_GIB", "1e-8")
    assert Cache(cache.folder).prune(idle=0.0) == pytest.approx(2 * size, abs=8)
    assert not any((cache.folder / "building").iterdir())
    for wrong in ("0", "much", "inf"):
        monkeypatch.setenv("ATTNFUZZ_CACHE_GIB", wrong)
        with pytest.raises(CacheError, match="ATTNFUZZ_CACHE_GIB"):
            Cache(cache.folder)


def test_what_killed_builds_left_is_removed_and_what_is_being_built_is_not(cache: Cache, toy) -> None:
    dead, alive = toy("add", value=1), toy("add", value=2)
    (cache.folder / "building" / f"{dead.key}.abc").mkdir()
    (cache.folder / "building" / f"{dead.key}.abc" / "kernel.o").write_bytes(b"half")
    with cache.locked(alive.key), cache.writing(alive) as folder:
        assert not cache.sweep()
        assert list((cache.folder / "building").iterdir()) == [folder]
        cache.prune()
        assert folder.exists()
    assert cache.sweep()


def test_failures_and_locks_of_a_month_ago_go_and_a_held_lock_stays(cache: Cache, toy) -> None:
    old, new, held = (toy("add", value=value) for value in range(3))
    for build in (old, new, held):
        cache.failed(build, Failure("why", "log"))
        with cache.locked(build.key):
            pass
    long_ago = time.time() - OLD - 60
    for build in (old, held):
        os.utime(cache.folder / "locks" / build.key, (long_ago,) * 2)
        os.utime(cache.folder / "failures" / f"{build.key}.json", (long_ago,) * 2)
    with cache.locked(held.key):
        cache.prune()
    assert {path.name for path in (cache.folder / "locks").iterdir()} == {new.key, held.key}
    assert [cache.failure(build) is not None for build in (old, new, held)] == [False, True, False]


def test_who_waits_for_a_lock_that_is_removed_meanwhile_does_not_build_beside_another(cache: Cache, toy) -> None:
    build = toy("add", value=1)
    got = threading.Event()

    def wait() -> None:
        with cache.locked(build.key):
            got.set()

    removed = cache.locked(build.key)
    removed.__enter__()
    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.2)
    (cache.folder / "locks" / build.key).unlink()
    with cache.locked(build.key):  # a new file
        removed.__exit__(None, None, None)
        assert not got.wait(0.5)
    assert got.wait(10)
    waiter.join()


def test_a_compiler_for_another_cuda_is_another_toolchain(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for installed in ("nvidia-cutlass-dsl-libs-cu12", "nvidia-cutlass-dsl-libs-cu13"):
        keys.toolchain.cache_clear()
        monkeypatch.setattr(keys, "_version", lambda name, it=installed: "4.8.1" if name == it else "none")
        seen.append(keys.toolchain())
    monkeypatch.undo()
    keys.toolchain.cache_clear()
    assert seen[0] != seen[1]


def test_variables_that_change_the_code_are_of_the_key(monkeypatch: pytest.MonkeyPatch, toy) -> None:
    before = toy("add", value=1).key
    keys.toolchain.cache_clear()
    monkeypatch.setenv("CUTE_DSL_LINEINFO", "1")
    after = toy("add", value=1).key
    monkeypatch.undo()
    keys.toolchain.cache_clear()
    assert before != after


def test_the_variables_are_those_that_the_compiler_says_change_the_code() -> None:
    from cutlass.cutlass_dsl import CuTeDSL

    known = type(CuTeDSL._get_dsl().envar)
    settings = [value for part in known.__mro__ for value in vars(part).values()]
    named = {s.source for s in settings if getattr(s, "affects_compile", False) and isinstance(s.source, str)}
    assert {f"CUTE_DSL_{name}" for name in named - {"ARCH"}} <= set(keys.VARIABLES)  # the arch is a field of its own


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "ATTNFUZZ_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # KeyError, as for a number that nobody has
    with pytest.raises(CacheError, match="ATTNFUZZ_CACHE: must name a folder"):
        Cache()
