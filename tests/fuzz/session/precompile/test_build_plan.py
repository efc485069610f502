"""The plan of a session, and `attnfuzz compile`."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from fuzz.cli.main import main
from fuzz.compiling import Cache, Ended, Pool
from fuzz.compiling.cache import Failure
from fuzz.session.plan import plan as shards_of
from fuzz.session.precompile.background_compile import compile_ahead
from fuzz.session.precompile.build_plan import plan
from fuzz.session.precompile.compile_progress import summary
from fuzz.session.settings import Settings
from fuzz.session.worker import Worker
from fuzz.targets.flash_attention_4 import target as flash_attention_4
from fuzz.targets.registry import load

TARGET = str(Path(__file__).parents[3] / "fakes" / "recipes" / "compiled_target.py")


def settings(**changed) -> Settings:
    return Settings(**{"targets": ("fake.compiled",), "files": (TARGET,), "cases": 30, "seed": 5} | changed)


def test_the_plan_is_what_the_session_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNFUZZ_CACHE", str(tmp_path / "cache"))
    wanted = settings(folder=str(tmp_path / "session"), corpus="", minimize_runs=0, size="small", repeats=1)
    planned = plan(wanted, "sm_100a")
    target = load("fake.compiled", wanted.files)
    ran = []
    with Worker(wanted, "w0") as worker:
        monkeypatch.setattr(
            worker, "_turn", lambda under_test, shard, case, index=-1: ran.extend([case] if case else []) or []
        )
        for shard in shards_of(wanted):
            worker.run_shard(shard)
    assert len(ran) == planned.cases["fake.compiled"] == 30
    needed = [build.key for case in ran for build in target.builds(case, "sm_100a")]
    assert planned.uses == {key: needed.count(key) for key in needed}
    assert [planned.uses[build.key] for build in planned.builds] == sorted(planned.uses.values(), reverse=True)


def test_a_share_of_a_larger_session_is_planned_for_the_targets_that_compile() -> None:
    planned = plan(settings(targets=(), cases=90), "sm_80")
    assert set(planned.cases) == {"fake.compiled", *(name for name in planned.cases if name.startswith("blocksparse"))}
    # The emulated GPU runs kernels of warpgroups, and of tensor memory, beside those of another arch.
    arches = {"wgmma": "sm_90a", "tcgen05": "sm_100a"}
    for build in planned.builds:
        assert build.arch == arches.get(json.loads(build.options).get("products"), "sm_80"), build


def test_a_target_whose_packages_are_not_here_is_left_out_unless_it_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(flash_attention_4, "_installed", lambda: False)
    planned = plan(Settings(device="cuda", cases=20), "sm_100a")
    assert planned.builds and "flash_attn.cute" in planned.left_out and "flash_attn.cute" not in planned.cases
    assert main(["compile", "--target", "flash_attn.cute", "--cases", "4"]) == 2
    assert capsys.readouterr().err == (
        "attnfuzz: flash_attn.cute cannot be compiled here: needs flash-attn-4 (pip install --pre flash-attn-4)\n"
    )


def test_compile_prepares_a_session_that_then_compiles_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["compile", "--target", "fake.compiled", "--device", "host", "--cases", "12", "--jobs", "2"]
    arguments += ["--cache", str(tmp_path), "--target-file", TARGET, "--arch", "sm_80", "--seed", "1"]
    first = main(arguments)
    text = capsys.readouterr().out
    assert "12 of fake.compiled" in text and " 0 cached" in text
    assert first == ("FAILED" in text)
    assert main(arguments) == first
    assert " 0 compiled" in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong", ["--arch sm_75", "--jobs 0", "--jobs many", "--kernel-timeout 0", "--kernel-timeout x"]
)
def test_bad_options_are_usage(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["compile", *wrong.split()])
    assert left.value.code == 2
    told = capsys.readouterr().err
    assert wrong.split()[0] in told and "invalid _" not in told


def test_a_bad_size_of_the_cache_is_usage_before_anything_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATTNFUZZ_CACHE_GIB", "many")
    assert main(["compile", "--target", "fake.compiled", "--cache", str(tmp_path), "--target-file", TARGET]) == 2
    assert capsys.readouterr().err == "attnfuzz: ATTNFUZZ_CACHE_GIB: must be a positive number, got 'many'\n"


def test_what_is_shown_of_a_failure_is_there(tmp_path: Path, toy) -> None:
    cache = Cache(tmp_path / "a[/b]c")
    ended = [Ended(toy("raises"), "failed", why="OSError: a full disk"), Ended(toy("add"), "built")]
    with Pool(cache, jobs=9) as pool:
        cache.failed(toy("raises"), Failure("another time", ""))
        shown = summary(ended, 60.0, pool)
    assert shown == [
        "2 kernels in 60.0 s: 0 cached, 1 compiled, 1 failed, 1 a minute with 2 workers",
        "FAILED sm_100a: OSError: a full disk",
        f"cache: {cache.folder}",
    ]


def test_an_unknown_target_is_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "--target", "nope"]) == 2
    assert "nope" in capsys.readouterr().err


def test_a_session_compiles_ahead_what_the_cache_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNFUZZ_CACHE", str(tmp_path / "cache"))
    shown = io.StringIO()
    wanted = settings(cases=12, size="small")
    ended = compile_ahead(wanted, Console(file=shown))
    assert {one.build.key for one in ended} == {build.key for build in plan(wanted, "sm_100a").builds}
    assert f"{len(ended)} kernels" in shown.getvalue()
    built = {one.build.key for one in ended if one.status == "built"}
    again = compile_ahead(wanted, Console(file=io.StringIO()))
    assert built and built.isdisjoint(one.build.key for one in again)


def test_a_session_without_anything_to_compile_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNFUZZ_CACHE", str(tmp_path / "cache"))
    shown = io.StringIO()
    assert compile_ahead(Settings(targets=("torch.sdpa.math",), cases=5), Console(file=shown)) == []
    assert shown.getvalue() == ""
