"""The compile workers: what one build does to itself, and never to the others."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from fuzz.compiling import Build, Cache, CompileError, Pool, obtain
from fuzz.compiling.build_key import ARCHS


def results(pool: Pool, builds: list[Build]) -> dict[str, tuple[str, str]]:
    return {ended.build.recipe.partition(":")[2]: (ended.status, ended.why) for ended in pool.build(builds)}


def test_every_arch_compiles_without_a_gpu(cache: Cache, toy) -> None:
    builds = [toy("add", arch, value=1) for arch in ARCHS]
    with Pool(cache, jobs=2) as pool:
        assert {ended.build.arch: ended.status for ended in pool.build(builds)} == dict.fromkeys(ARCHS, "built")
    for build in builds:
        artifact = cache.load(build)
        assert artifact is not None
        assert f".target {build.arch}" in artifact.ptx.read_text()
        assert artifact.object.read_bytes()[:4] == b"\x7fELF"
        assert artifact.header["entries"][0] in artifact.ptx.read_text()
        assert sorted(os.listdir(artifact.folder)) == ["header.json", "kernel.h", "kernel.o", "kernel.ptx"]


def test_what_hangs_crashes_raises_or_leaves_is_one_failed_key_each(cache: Cache, toy) -> None:
    names = ["hangs", "crashes", "raises", "leaves", "half", "missing"]
    with Pool(cache, jobs=3, limit=2.0) as pool:
        found = results(pool, [*map(toy, names), toy("add", value=1)])
        server = pool.pid
        children = psutil.Process(server).children(recursive=True)
    assert found["add"][0] == "built"
    assert {name: found[name] for name in names} == {
        "hangs": ("failed", "not done after 2 s, killed"),
        "crashes": ("failed", "the compiler died: SIGSEGV (signal 11)"),
        "raises": ("failed", "ValueError: tile_m: must be 64 or 128, got 48"),
        "leaves": ("failed", "SystemExit: 3"),
        "half": ("failed", "the compiler died: SIGKILL (signal 9)"),
        "missing": ("failed", "AttributeError: module 'toy_kernels' has no attribute 'missing'"),
    }
    assert children == []  # the grandchild of `hangs` too
    assert not any(cache.load(toy(name)) for name in names)
    assert not any((cache.folder / "building").iterdir())


def test_a_failure_keeps_its_log(cache: Cache, toy) -> None:
    with Pool(cache, jobs=2, limit=1.0) as pool:
        logs = {ended.build.recipe: ended.log for ended in pool.build([toy("hangs"), toy("crashes"), toy("raises")])}
    assert "in hangs" in logs["toy_kernels:hangs"]
    assert "about to crash" in logs["toy_kernels:crashes"] and "Segmentation fault" in logs["toy_kernels:crashes"]
    kept = cache.failure(toy("raises"))
    assert kept is not None and "tile_m: must be 64 or 128" in kept.log and kept.log == logs["toy_kernels:raises"]


def test_a_server_that_dies_costs_what_it_had_in_hand(cache: Cache, toy, tmp_path: Path, fresh_servers) -> None:
    marker = str(tmp_path / "marker")
    with Pool(cache) as pool:
        found = [(e.status, e.why) for e in pool.build([toy("kills_server", marker=marker), toy("add", value=3)])]
    assert found == [("failed", "the compile server ended (-9) while it had this build"), ("built", "")]
    kept = cache.failure(toy("kills_server", marker=marker))
    assert kept is not None and kept.why == found[0][1]
    assert not any((cache.folder / "building").iterdir())


def test_kernels_of_one_name_compiled_at_once_do_not_get_each_others_code(cache: Cache, toy) -> None:
    builds = [toy("add", value=1, hidden=2 + i) for i in range(12)]
    with Pool(cache, jobs=4) as pool:
        assert {ended.status for ended in pool.build(builds)} == {"built"}
    artifacts = [cache.load(build) for build in builds]
    for i, artifact in enumerate(artifacts):
        assert artifact is not None
        bits = struct.pack(">f", 2 + i).hex()
        assert f"0f{bits}".upper() in artifact.ptx.read_text().upper()


def test_the_compiler_leaves_no_files_behind(cache: Cache, toy, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Pool(cache) as pool:
        list(pool.build([toy("add", value=1)]))
    assert os.listdir(tmp_path) == [cache.folder.name]


def test_what_is_cached_is_not_built_again(cache: Cache, toy, tmp_path: Path) -> None:
    build = toy("add", value=1, count=str(tmp_path / "count"))
    with Pool(cache) as pool:
        assert [e.status for e in pool.build([build, build])] == ["built"]
        pool.close()
        assert [e.status for e in pool.build([build])] == ["cached"]
        assert pool.pid is None  # no server was started for it
    assert len((tmp_path / "count").read_text().splitlines()) == 1


_CLIENT = """
import signal, sys
from fuzz.compiling import Build, Cache, Pool
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background may have it ignored
with Pool(Cache(sys.argv[1]), limit=float(sys.argv[3])) as pool:
    for ended in pool.build([Build(*sys.argv[4:7])]):
        print(ended.status, flush=True)
"""


def client(cache: Cache, build: Build, limit: float = 60.0) -> subprocess.Popen:
    command = [
        sys.executable,
        "-c",
        _CLIENT,
        str(cache.folder),
        "",
        str(limit),
        build.recipe,
        build.options,
        build.arch,
    ]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)


def test_two_processes_never_build_one_key_twice(cache: Cache, toy, tmp_path: Path) -> None:
    build = toy("add", value=1, count=str(tmp_path / "count"), seconds=1.0)
    both = [client(cache, build) for _ in range(2)]
    assert sorted(process.communicate(timeout=60)[0].strip() for process in both) == ["built", "cached"]
    assert len((tmp_path / "count").read_text().splitlines()) == 1


def wait_for(condition, seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_ended_client_leaves_no_process_no_lock_and_nothing_half(cache: Cache, toy, number: int) -> None:
    build = toy("hangs")
    process = client(cache, build)
    corpses = cache.folder / "building"
    wait_for(lambda: any(corpses.iterdir()))
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 2
    process.send_signal(number)
    process.wait(20)
    wait_for(lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in family), 5.0)
    assert cache.load(build) is None
    with cache.locked(build.key):  # at once: the lock died with its holder
        assert not any(corpses.iterdir())


def test_the_clock_of_a_build_starts_when_it_holds_the_lock(cache: Cache, toy) -> None:
    build = toy("add", value=7)
    with cache.locked(build.key):
        process = client(cache, build, limit=10.0)
        time.sleep(2.5)
        waited = client(cache, toy("add", value=8), limit=10.0)
        assert waited.communicate(timeout=30)[0].strip() == "built"  # others are not held up
        assert process.poll() is None
    assert process.communicate(timeout=30)[0].strip() == "built"


def test_obtain_builds_on_a_miss_and_remembers_a_failure(cache: Cache, toy) -> None:
    artifact = obtain(toy("add", value=9), cache.folder)
    assert artifact.header["options"] == {"value": 9}
    for _ in range(2):
        with pytest.raises(CompileError, match="ValueError: tile_m: must be 64 or 128, got 48"):
            obtain(toy("raises"), cache.folder)


def test_the_server_has_one_thread_so_that_it_may_fork(cache: Cache, toy) -> None:
    with Pool(cache) as pool:
        list(pool.build([toy("add", value=1)]))
        assert psutil.Process(pool.pid).num_threads() == 1


def test_a_ptx_for_another_arch_than_asked_for_is_a_failure(cache: Cache, toy) -> None:
    build = Build.of("toy_kernels:add", {"value": 1, "arch": "sm_80"}, "sm_90a")
    with Pool(cache) as pool:
        (ended,) = pool.build([build])
    assert (ended.status, ended.why) == ("failed", "ValueError: the PTX is for sm_80, asked for was sm_90a")
    assert json.loads(build.options)["arch"] == "sm_80"


def test_a_build_that_fails_before_it_holds_its_lock_says_why(cache: Cache, toy) -> None:
    build = toy("add", value=1)
    (cache.folder / "locks" / build.key).mkdir()
    with Pool(cache) as pool:
        (ended,) = pool.build([build])
    assert ended.status == "failed" and ended.why.startswith("IsADirectoryError:")


def test_a_failure_whose_log_cannot_be_written_says_why(cache: Cache, toy) -> None:
    with Pool(cache) as pool:
        (ended,) = pool.build([toy("raises_without_a_log")])
    assert (ended.status, ended.why) == ("failed", "ValueError: tile_m: must be 64 or 128, got 48")


def test_a_ptx_that_was_written_in_part_is_a_failure(cache: Cache, toy) -> None:
    with Pool(cache, jobs=2) as pool:
        found = list(pool.build([toy("full_disk", at=at) for at in (0.3, 0.5, 0.9)]))
    assert {ended.status for ended in found} == {"failed"}
    assert all("in the middle" in ended.why or "no entry point" in ended.why for ended in found)


def test_temporary_files_of_a_killed_build_go_with_it(cache: Cache, toy, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    with Pool(cache) as pool:
        (ended,) = pool.build([toy("dies_with_temporary_files")])
    assert ended.why == "the compiler died: SIGKILL (signal 9)"
    assert [path for place in (tmp_path / "tmp", cache.folder / "building") for path in place.rglob("*.ptx")] == []


def test_sources_that_change_before_a_build_imports_them_are_a_failure(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "late_kernel"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "recipe.py").write_text(
        "def build(options, arch):\n    import toy_kernels\n    from late_kernel.value import VALUE\n"
        "    return toy_kernels.add({'value': VALUE + options['more']}, arch)\n"
    )
    (package / "value.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    first, second = (Build.of("late_kernel.recipe:build", {"more": n}, "sm_80", ("late_kernel",)) for n in (1, 2))
    assert first.key != second.key
    with Pool(cache) as pool:
        assert [ended.status for ended in pool.build([first])] == ["built"]
        (package / "value.py").write_text("VALUE = 5\n")
        (ended,) = pool.build([second])
    assert ended.status == "failed" and "the sources changed while" in ended.why
    assert cache.load(second) is None


@pytest.mark.parametrize("limit", [1e8, float("inf")])
def test_a_very_long_limit_is_one(cache: Cache, toy, limit: float) -> None:
    with Pool(cache, limit=limit) as pool:
        assert [ended.status for ended in pool.build([toy("add", value=1)])] == ["built"]


@pytest.mark.nightly
def test_a_recipe_whose_import_hangs_is_a_failed_build(cache: Cache, toy, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "hanging_recipe.py").write_text("import time\ntime.sleep(3600)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with Pool(cache, limit=5.0) as pool:
        found = list(pool.build([Build.of("hanging_recipe:build", {}, "sm_80"), toy("add", value=1)]))
    assert [(ended.status, ended.why) for ended in found] == [
        ("failed", "the compile server ended (1) while it had this build"),
        ("built", ""),
    ]


@pytest.mark.nightly
def test_a_pool_that_is_left_early_does_not_mistake_one_build_for_another(cache: Cache, toy) -> None:
    with Pool(cache, jobs=2) as pool:
        assert next(pool.build([toy("add", value=1, seconds=2.0), toy("add", value=2)])).build == toy("add", value=2)
        (ended,) = pool.build([toy("add", value=3, seconds=5.0)])
    assert ended.status == "built" and cache.load(ended.build) is not None
