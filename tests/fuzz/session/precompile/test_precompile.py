"""Compiling beside a session: what needs nothing runs at once, the rest when its kernels are there."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest
from covering import daily

from fuzz.session.plan import Shard, plan
from fuzz.session.precompile.background_compile import BackgroundCompile
from fuzz.session.precompile.ready import ReadyShards
from fuzz.session.settings import Settings

TARGET = str(Path(__file__).parents[3] / "fakes" / "recipes" / "compiled_target.py")
SETTINGS = Settings(
    targets=("fake.compiled", "torch.sdpa.math"), files=(TARGET,), cases=40, seed=5, size="small", corpus=""
)

BROKEN = """
import sys

sys.path.insert(0, {folder!r})
from compiled_target import CompiledTarget


class Broken(CompiledTarget):
    name = "fake.broken"

    def builds(self, case, arch):
        if case.problem.dim % 64:
            raise ZeroDivisionError("no name")
        return super().builds(case, arch)


TARGETS = [Broken()]
"""


@pytest.mark.parametrize("plan_first", daily([False, True], [True]))
def test_shards_that_need_no_compiling_are_ready_at_once_and_the_others_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan_first: bool
) -> None:
    monkeypatch.setenv("ATTNFUZZ_CACHE", str(tmp_path))
    shards, ready, said = plan(SETTINGS), list[Shard](), list[str]()
    everything = threading.Event()

    def note(shard: Shard) -> None:
        ready.append(shard)
        if len(ready) == len(shards):
            everything.set()

    with BackgroundCompile(SETTINGS, shards, note, said.append) as compiling:
        compiling.start(plan_first)
        assert [shard.target for shard in ready[:1]] == ["torch.sdpa.math"]
        assert everything.wait(120)
    assert ready == shards  # the order in which they are run
    assert " compiled, " in said[0] and compiling.progress() == ""


def test_a_case_whose_kernels_cannot_be_named_takes_no_other_case_s_kernels_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNFUZZ_CACHE", str(tmp_path / "cache"))
    broken = tmp_path / "broken_target.py"
    broken.write_text(BROKEN.format(folder=str(Path(TARGET).parent)))
    settings = msgspec.structs.replace(SETTINGS, targets=("fake.broken",), files=(str(broken),))
    shards, ready, said = plan(settings), list[Shard](), list[str]()
    with BackgroundCompile(settings, shards, ready.append, said.append) as compiling:
        compiling.start(plan_first=True)
        assert len(said) == 1 and "fake.broken: kernels of case" in said[0] and "ZeroDivisionError: no name" in said[0]
        while compiling.progress():
            threading.Event().wait(0.05)
    assert " compiled, " in said[1] and len(ready) == len(shards)


def test_a_session_that_ends_early_stops_the_compiling_and_lets_every_shard_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNFUZZ_CACHE", str(tmp_path))
    shards, ready = plan(SETTINGS), list[Shard]()
    with BackgroundCompile(SETTINGS, shards, ready.append) as compiling:
        compiling.start()
    assert sorted(shard.name for shard in ready) == sorted(shard.name for shard in shards)
    assert not list((tmp_path / "building").iterdir())


def test_a_shard_is_waited_for_until_it_is_ready(tmp_path: Path) -> None:
    (shard,) = plan(Settings(targets=("torch.sdpa.math",), cases=3))
    ready = ReadyShards(tmp_path)
    ready.begin()
    threading.Timer(0.3, ready.add, [shard]).start()
    ready.wait(shard, lambda: False)
    ready.begin()
    assert not list((tmp_path / "ready").iterdir())
