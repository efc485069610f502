"""Sessions: the same cases however many workers, every bug once, nothing lost."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from covering import daily
from judge_tools import FAKES

from fuzz.core.case import Case
from fuzz.core.verdict import Finding, Signature, Verdict
from fuzz.corpus.entry import Entry
from fuzz.corpus.store import load_all, save
from fuzz.runner import HarnessError, Runner
from fuzz.session import worker
from fuzz.session.draw import drawer_of, explore
from fuzz.session.failures.settle import save_rest
from fuzz.session.plan import Shard, plan
from fuzz.session.records import Reader, Record, Recorder, faults_in, settlement
from fuzz.session.settings import Settings
from fuzz.session.worker import Worker, run
from fuzz.targets.registry import TargetError, load
from oracles.problem import Problem


def settings(folder: Path, **changed) -> Settings:
    base = Settings(
        targets=("fake.honest",),
        cases=6,
        size="small",
        files=FAKES,
        folder=str(folder / "session"),
        corpus=str(folder / "corpus"),
        minimize_runs=25,
        minimize_seconds=20.0,
    )
    return msgspec.structs.replace(base, **changed)


def records(folder: Path) -> list[Record]:
    return settlement(folder / "session").apply(Reader(folder / "session").new())


def test_shards_share_the_cases_and_keep_their_seeds_whatever_else_runs(tmp_path: Path) -> None:
    both = plan(settings(tmp_path, targets=("fake.honest", "torch.sdpa.math"), cases=101))
    assert sum(shard.cases for shard in both) == 101
    alone = plan(settings(tmp_path, targets=("torch.sdpa.math",), cases=50))
    assert {(shard.name, shard.seed) for shard in alone} <= {(shard.name, shard.seed) for shard in both}


def test_an_unknown_target_stops_the_plan(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="not known"):
        plan(settings(tmp_path, targets=("nope",)))


def test_two_sessions_with_one_seed_draw_the_same_cases(tmp_path: Path) -> None:
    drawn = []
    for name in ("a", "b"):
        wanted = settings(tmp_path / name)
        assert run(wanted, plan(wanted), "w0") == []
        drawn.append([record.case_id for record in records(tmp_path / name)])
    assert drawn[0] == drawn[1] and len(set(drawn[0])) == 6


DRAW = """
import sys
if sys.argv[1] == "after":
    import fuzz.score.command, fuzz.script, fuzz.minimize, kernels.mutants.blocksparse.table, fuzz.cli.doctor
from fuzz.session.draw import drawer_of, explore
from fuzz.session.plan import plan
from fuzz.session.settings import Settings
from fuzz.session.failures.settle import save_rest
from fuzz.targets.registry import load
wanted = Settings(targets=("torch.sdpa.math",), cases=100, seed=4)
target = load("torch.sdpa.math")
for shard in plan(wanted):
    explore(shard, drawer_of(target, wanted), lambda case: print(case.id))
"""


@pytest.mark.nightly
def test_the_cases_of_a_seed_do_not_depend_on_what_a_process_has_imported() -> None:
    ran = [
        subprocess.run([sys.executable, "-c", DRAW, which], capture_output=True, text=True, check=True).stdout.split()
        for which in ("before", "after")
    ]
    assert ran[0] == ran[1] and len(ran[0]) == 100


def test_cases_that_promise_the_same_bits_may_be_repeated_more_often(tmp_path: Path) -> None:
    wanted = settings(tmp_path, targets=("blocksparse",), device="cuda", cases=60, files=(), repeats_deterministic=20)
    target = load("blocksparse", device="cuda")
    found = []
    for shard in plan(wanted):
        explore(shard, drawer_of(target, wanted), found.append)
    assert {(case.variant["deterministic"], case.repeats) for case in found} == {(True, 20), (False, 3)}
    with pytest.raises(ValueError, match="repeats_deterministic"):
        settings(tmp_path, repeats_deterministic=-1).__post_init__()


def test_long_shards_are_run_whole_whoever_draws_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz.session.draw.LONG_SHARD", 5)
    wanted = settings(tmp_path, cases=10)
    climbing, plain = (Shard("fake.honest", index, 5, index + 1, 5 * index) for index in range(2))
    drawn: list[str] = []
    explore(plain, drawer_of(load("fake.honest", FAKES), wanted), lambda case: drawn.append(case.id))
    run(wanted, [climbing, plain], "w0")
    by_shard = {shard.name: [r for r in records(tmp_path) if r.shard == shard.name] for shard in (climbing, plain)}
    assert [record.case_id for record in by_shard[plain.name]] == drawn
    assert len(by_shard[climbing.name]) == 5


def test_one_bug_is_reported_once_and_minimised_into_the_corpus(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    wanted = settings(tmp_path, targets=("fake.ignores_scale",), cases=40)
    new = run(wanted, plan(wanted), "w0")
    made = records(tmp_path)
    failed = [record for record in made if record.outcome == "fail"]
    assert len(failed) > 1 and len(made) == 40
    assert len(new) == 1 and {record.status for record in failed} == {"new", "again"}
    (entry,) = load_all(tmp_path / "corpus")
    assert "scale" in entry.signature.features
    assert entry.case.problem.batch == 1 and entry.case.problem.heads_q == 1
    assert new[0].finding == str(tmp_path / "corpus" / entry.name)


@pytest.mark.nightly
def test_an_explained_finding_is_known_and_no_news(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    wanted = settings(tmp_path, targets=("fake.ignores_scale",), cases=25)
    assert run(wanted, plan(wanted), "w0")
    for path in (tmp_path / "corpus").glob("*.json"):
        entry = json.loads(path.read_text()) | {"explanation": "the scale is hard-wired"}
        path.write_text(json.dumps(entry))
    again = msgspec.structs.replace(wanted, folder=str(tmp_path / "second" / "session"))
    assert run(again, plan(again), "w0") == []
    # 'again': a raw failure like one that was minimised to the known one in this session
    statuses = {r.status for r in records(tmp_path / "second") if r.outcome == "fail"}
    assert "known" in statuses and statuses <= {"known", "again"}


@pytest.mark.nightly
def test_what_shows_in_a_relations_run_alone_is_known_where_the_corpus_knows_it(tmp_path: Path) -> None:
    """A call that fails now and then passes when its question is asked again; then its failing run has to tell."""
    name, why = "fake.wrong_after_a_quarter", "what was called before matters"
    problem = Problem((20,), (33,), 1, 1, 16, 16, "float32", scale=0.1, backward=False)
    sign = Signature(name, "nan", "accuracy", ("o",), features=("scale",))
    entry = Entry(version=1, expect="fail", explanation=why, case=Case(name, problem), signature=sign)
    statuses = []
    for folder, kept in ((tmp_path / "known", [entry]), (tmp_path / "new", [])):
        (folder / "corpus").mkdir(parents=True)
        for one in kept:
            save(one, folder / "corpus")
        wanted = settings(folder, targets=(name,), cases=120, minimize_runs=5)
        run(wanted, plan(wanted), "w0")
        statuses.append({record.status for record in records(folder) if record.outcome == "fail"})
    assert statuses[0] == {"known"} and "new" in statuses[1]


def test_a_crash_costs_one_case_and_the_shard_goes_on(tmp_path: Path) -> None:
    wanted = settings(tmp_path, targets=("fake.segfaults",), cases=3, minimize_runs=2)
    run(wanted, plan(wanted), "w0")
    assert [record.outcome for record in records(tmp_path)] == ["crash"] * 3


def test_a_fault_of_the_harness_costs_one_case_and_is_kept(tmp_path: Path, monkeypatch) -> None:
    class Fails(Runner):
        count = 0

        def collect(self) -> Verdict:
            verdict = super().collect()
            Fails.count += 1
            if Fails.count == 3:
                raise HarnessError(f"the judge failed on case {verdict.case_id}:\nTraceback …\nKeyError: 'x'")
            return verdict

    monkeypatch.setattr(worker, "Runner", Fails)
    wanted = settings(tmp_path)
    with Worker(wanted, "w0") as one:
        one.run_shard(plan(wanted)[0])
        assert len(one.faults) == 1
    assert [record.outcome for record in records(tmp_path)] == ["pass"] * 5
    (line,) = faults_in(tmp_path / "session")
    assert line.startswith("1 case was not judged, by a fault of the harness (the judge failed on case ")
    assert "KeyError: 'x'" in line and line.endswith("faults-w0.jsonl")
    assert faults_in(tmp_path / "session", time.time()) == [], "of a session before in this folder"


@pytest.mark.nightly
def test_a_worker_that_is_killed_while_it_minimises_loses_neither_the_failure_nor_a_case(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fuzz.cli", "run", "--target", "fake.ignores_scale", "--cases", "50"]
    command += ["--jobs", "1", "--output-dir", str(tmp_path / "session"), "--corpus", str(tmp_path / "none")]
    command += [part for file in FAKES for part in ("--target-file", file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        os.kill(_minimising(tmp_path / "session" / "claims"), signal.SIGKILL)
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert "NEW fake.ignores_scale: O is wrong" in said and "saved as it was met" in said, said
    assert "ended with exit code -9" in said and process.returncode == 1
    assert {(r.shard[-1], r.index) for r in records(tmp_path)} == {(s, i) for s in "01" for i in range(25)}
    assert len(records(tmp_path)) == 50
    saved = load_all(tmp_path / "session" / "findings")
    assert saved and not any(entry.runs for entry in saved)
    assert all(f"attnfuzz repro {tmp_path / 'session' / 'findings' / entry.name}" in said for entry in saved)


def _minimising(claims: Path) -> int:
    """Process of the first claim."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for path in claims.glob("[!.]*"):
            if text := path.read_bytes():
                return int(json.loads(text)["pid"])
        time.sleep(0.002)
    raise AssertionError("nothing was claimed")


def test_cases_are_recorded_as_drawn_though_the_next_is_drawn_meanwhile(tmp_path: Path, monkeypatch) -> None:
    events: list[tuple[str, str]] = []

    class Noted(Runner):
        def collect(self) -> Verdict:
            verdict = super().collect()
            events.append(("collected", verdict.case_id))
            return verdict

    def noted(case: Case) -> Case:
        events.append(("drawn", case.id))
        return case

    def noting(*of: Any) -> Callable[[random.Random], Case]:
        drawn = drawer_of(*of)
        return lambda draw: noted(drawn(draw))

    monkeypatch.setattr(worker, "Runner", Noted)
    monkeypatch.setattr(worker, "drawer_of", noting)
    wanted = settings(tmp_path, cases=12)
    (shard,) = plan(wanted)
    drawn: list[str] = []
    explore(shard, drawer_of(load("fake.honest", FAKES), wanted), lambda case: drawn.append(case.id))
    run(wanted, [shard], "w0")
    found = records(tmp_path)
    assert [record.case_id for record in found] == drawn
    for one, following in pairwise(drawn):
        assert events.index(("drawn", following)) < events.index(("collected", one))
    assert all(record.seconds["total"] >= record.seconds.get("run", 0.0) for record in found)


def test_a_time_limit_stops_drawing(tmp_path: Path) -> None:
    wanted = settings(tmp_path, cases=5000, seconds=0.5)
    with Worker(wanted, "w0") as one:
        one.run_shard(plan(wanted)[0])
    assert len(records(tmp_path)) < 5000


@pytest.mark.parametrize("cases", daily([7, 120], [7]))
def test_a_shard_in_slices_has_the_cases_of_a_whole_one_each_once(tmp_path: Path, cases: int) -> None:
    """A slice of no time runs a case. 120: of a shard that climbs."""
    whole, sliced = (settings(tmp_path / name, cases=cases, seed=3) for name in ("whole", "sliced"))
    (shard,) = (Shard("fake.honest", 0, cases, 5),)
    run(whole, [shard], "w0")
    with Worker(sliced, "w0") as one:
        while (left := one.left_of(shard)) > 0:
            one.run_shard(shard, seconds=0.0 if left > cases - 4 else 60.0)
            assert one.left_of(shard) == (left - 1 if left > cases - 4 else 0)
    found = [[(r.index, r.case_id) for r in records(tmp_path / name)] for name in ("whole", "sliced")]
    assert found[0] == found[1] and len(found[0]) == cases


@pytest.mark.nightly
def test_a_time_limit_holds_for_cases_and_minimising_together(tmp_path: Path) -> None:
    """A case takes less than a second here; what is left when the time is up is saved as it was met."""
    wanted = settings(tmp_path, targets=("fake.ignores_scale",), cases=5000, seconds=8.0, minimize_seconds=45.0)
    with Worker(wanted, "w0") as one:
        one.open()
        began = time.monotonic()
        one.run_shard(plan(wanted)[0])
        drawn = time.monotonic() - began
        one.settle()
        assert time.monotonic() - began < wanted.seconds + 5.0
    assert drawn < wanted.seconds * 0.9, "failures had their share of the time"
    save_rest(tmp_path / "session", "host", records(tmp_path))
    assert {record.status for record in records(tmp_path) if record.outcome == "fail"} == {"new", "again"}


def test_a_hang_that_does_not_show_again_goes_to_quarantine_and_is_no_finding(tmp_path: Path, monkeypatch) -> None:
    """As of a child that somebody has suspended for a while, or killed."""

    class Suspended(Runner):
        count = 0

        def collect(self) -> Verdict:
            verdict = super().collect()
            Suspended.count += 1
            if Suspended.count != 3:
                return verdict
            return Verdict(verdict.case_id, "hang", (Finding("runner", "hang", "the kernel's run did not end"),))

    monkeypatch.setattr(worker, "Runner", Suspended)
    (tmp_path / "corpus").mkdir()
    wanted = settings(tmp_path)
    assert run(wanted, plan(wanted), "w0") == []
    found = [record for record in records(tmp_path) if record.outcome != "pass"]
    assert [(record.outcome, record.status) for record in found] == [("hang", "unconfirmed")]
    assert "in 1 of 3 runs; not again" in found[0].message and not found[0].counts
    assert Path(found[0].finding).parent == tmp_path / "session" / "quarantine"
    assert not load_all(tmp_path / "corpus")


def test_a_hang_that_shows_again_counts(tmp_path: Path, monkeypatch) -> None:
    class Hangs(Runner):
        def collect(self) -> Verdict:
            verdict = super().collect()
            return Verdict(verdict.case_id, "hang", (Finding("runner", "hang", "the kernel's run did not end"),))

    monkeypatch.setattr(worker, "Runner", Hangs)
    wanted = settings(tmp_path, cases=3, minimize_runs=60)
    (one,) = run(wanted, plan(wanted), "w0")
    assert one.status == "new" and [record.outcome for record in records(tmp_path)] == ["hang"] * 3
    assert sorted(record.status for record in records(tmp_path)) == ["again", "again", "new"]


def test_a_reader_leaves_a_half_written_line_for_later(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "w0")
    record = Record("w0", "shard", "t", "id", "pass", {"total": 1.0})
    recorder.add(record)
    whole = recorder.path.read_bytes()
    recorder.path.write_bytes(whole + whole[:10])
    reader = Reader(tmp_path)
    assert list(reader.new()) == [record]
    recorder.path.write_bytes(whole + whole)
    assert list(reader.new()) == [record]


def test_a_full_disk_leaves_no_half_line() -> None:
    recorder = Recorder.__new__(Recorder)
    recorder.path = Path("/dev/full")
    recorder._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115
    with pytest.raises(OSError):
        recorder.add(Record("w0", "shard", "t", "id", "pass", {}))
