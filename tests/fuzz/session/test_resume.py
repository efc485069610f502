"""A session that ended early goes on: its remaining cases are run, and only those; its folder shows what it found."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from multiprocessing import Pipe
from pathlib import Path

import msgspec
import pytest
from judge_tools import FAKES

from fuzz.cli.main import main
from fuzz.session.plan import Shard, plan
from fuzz.session.records import Reader, Record, Recorder, write_session
from fuzz.session.resume import SessionError, already_ran, owned, read_session, unfinished
from fuzz.session.settings import Settings
from fuzz.session.shard_pipe import AHEAD, SLOT, ShardWriter, take
from fuzz.session.worker import Worker

ROOT = Path(__file__).parents[3]
WANTED = Settings(targets=("fake.honest",), cases=104, size="small", files=FAKES, corpus="", repeats=1)


def run_all(settings: Settings, ran=None) -> list[Record]:
    """The records of one worker that runs the session alone."""
    with Worker(settings, "w0" if ran is None else "w1", ran) as worker:
        for shard in plan(settings):
            worker.run_shard(shard)
    return list(Reader(Path(settings.folder)).new())


@pytest.fixture(scope="module", autouse=True)
def large_shards():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fuzz.session.plan.SHARD_CASES", 104)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Settings, list[Record]]:
    """An uninterrupted session with shards of 104 cases, in which each case depends on those before it."""
    settings = msgspec.structs.replace(WANTED, folder=str(tmp_path_factory.mktemp("whole")))
    write_session(Path(settings.folder), settings)
    return settings, run_all(settings)


@pytest.mark.parametrize("kept", [pytest.param(0, marks=pytest.mark.nightly), 61, 104])
def test_the_remaining_cases_are_those_of_an_uninterrupted_session(whole, tmp_path, kept):
    settings, records = whole
    folder = tmp_path / "moved"
    shutil.copytree(settings.folder, folder)
    (path,) = folder.glob("records-*.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:kept]) + b'{"worker": "w0", "sha')  # torn, as by a machine that went down
    found = read_session(folder)
    ran = already_ran(found)
    assert found.settings == msgspec.structs.replace(settings, folder=str(folder)) and len(found.records) == kept
    one_shard = next(iter(ran.values()), {})
    places = {index: (one.case_id, one.passed, one.ratio) for index, one in one_shard.items()}
    assert places == {r.index: (r.case_id, r.outcome == "pass", r.ratio) for r in found.records}
    assert bool(unfinished(plan(found.settings), ran)) == (kept < 104)
    after = run_all(found.settings, ran)
    assert {(r.index, r.case_id) for r in after} == {(r.index, r.case_id) for r in records}
    assert len(after) == 104 and {r.worker for r in after[kept:]} <= {"w1"}


def test_no_record_is_glued_to_a_torn_line(tmp_path):
    (tmp_path / "records-w0.jsonl").write_bytes(b'{"worker": "w0", "sha')
    recorder = Recorder(tmp_path, "w0")
    recorder.add(Record("w0", "shard", "t", "id", "pass", {}, 3))
    recorder.close()
    assert [record.index for record in Reader(tmp_path).new()] == [3]


def test_records_of_a_session_before_in_the_folder_are_not_of_this_one(whole, tmp_path):
    settings, _ = whole
    folder = tmp_path / "again"
    shutil.copytree(settings.folder, folder)
    write_session(folder, settings)
    assert read_session(folder).records == ()


def test_a_folder_shows_its_table_and_what_is_left(whole, tmp_path, capsys):
    settings, _ = whole
    assert main(["show", settings.folder]) == 0
    assert "fake.honest" in capsys.readouterr().out
    folder = tmp_path / "part"
    shutil.copytree(settings.folder, folder)
    (path,) = folder.glob("records-*.jsonl")
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:50]))
    assert main(["show", str(folder)]) == 0
    assert f"50 of 104 cases; the rest: attnfuzz run --resume {folder}" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["show"], ["run", "--resume"]])
@pytest.mark.parametrize("content", [None, "{", '{"settings": {"cases": 0}, "machine": {}}'])
def test_a_folder_without_a_session_is_a_usage_error(tmp_path, capsys, command, content):
    if content is not None:
        (tmp_path / "session.json").write_text(content)
    assert main([*command, str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert str(tmp_path) in line


def test_a_resumed_session_takes_no_other_settings(whole, capsys):
    assert main(["run", "--resume", whole[0].folder, "--cases", "5", "--seed", "3"]) == 2
    assert "leave out --cases, --seed" in capsys.readouterr().err


def test_one_session_at_a_time_runs_in_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("fuzz.session.resume.PATIENCE", 0.1)
    with owned(tmp_path), pytest.raises(SessionError, match="a session is running in it"), owned(tmp_path):
        pass
    with owned(tmp_path):
        pass


def test_a_worker_that_is_killed_as_it_takes_a_shard_holds_no_other_up():
    reading, writing = Pipe(duplex=False)
    pipe = ShardWriter(writing)
    killed = os.fork()
    if not killed:
        writing.close()
        while True:
            take(reading)
    os.kill(killed, signal.SIGKILL)
    os.waitpid(killed, 0)
    shards = [Shard("torch.sdpa.math", index, 25, 7 * index) for index in range(300)]
    for shard in shards:
        pipe.put(shard)
    pipe.finish()
    assert [take(reading) for _ in range(301)] == [*shards, None]


def _filled(pipe):
    """Waits until the pipe holds as many shards as it is to."""
    until = time.monotonic() + 20
    while pipe._unread() < AHEAD * SLOT and time.monotonic() < until:
        time.sleep(0.01)


def test_in_a_session_that_ends_by_time_a_target_that_is_compiled_late_comes_to_its_turn():
    reading, writing = Pipe(duplex=False)
    pipe = ShardWriter(writing, lambda target: 0.0)
    early = [Shard("torch.sdpa.math", index, 25, index) for index in range(6)]
    late = [Shard("blocksparse", index, 25, index) for index in range(2)]
    for shard in early:
        pipe.put(shard)
    assert [take(reading) for _ in range(2)] == early[:2]
    _filled(pipe)
    with pipe._changed:
        for shard in late:
            pipe.put(shard)
        pipe.finish()
    assert [take(reading) for _ in range(7)] == [*early[2:4], *late, *early[4:], None]


def test_in_a_session_that_ends_by_time_a_target_whose_cases_take_long_waits_for_the_others():
    reading, writing = Pipe(duplex=False)
    seconds = {"torch.flex": 500.0, "sdpa": 1.0}
    pipe = ShardWriter(writing, lambda target: seconds[target])
    shards = {name: [Shard(name, index, 25, index) for index in range(4)] for name in seconds}
    with pipe._changed:  # all are put before the first goes into the pipe
        for shard in shards["torch.flex"] + shards["sdpa"]:
            pipe.put(shard)
        pipe.finish()
    _filled(pipe)
    seconds["sdpa"] = 990.0
    assert [take(reading) for _ in range(9)] == [*shards["sdpa"][:2], *shards["torch.flex"], *shards["sdpa"][2:], None]


def test_workers_are_shared_among_targets_while_no_case_has_ended():
    reading, writing = Pipe(duplex=False)
    pipe = ShardWriter(writing, lambda target: 0.0)
    names = ("torch.flex", "nsa", "sdpa")
    with pipe._changed:
        for name in names:
            for index in range(3):
                pipe.put(Shard(name, index, 25, index))
        pipe.finish()
    taken = [take(reading) for _ in range(9)]
    assert [(one.target, one.index) for one in taken] == [(name, index) for index in range(3) for name in names]


def test_shards_that_no_worker_takes_any_more_hold_nothing_up():
    reading, writing = Pipe(duplex=False)
    pipe = ShardWriter(writing)
    reading.close()
    for index in range(3):
        pipe.put(Shard("torch.sdpa.math", index, 25, index))
    pipe.finish()
    until = time.monotonic() + 20
    while not pipe.closed and time.monotonic() < until:
        time.sleep(0.01)
    assert pipe.closed


def test_what_still_waits_when_the_pipe_is_closed_keeps_no_thread():
    _reading, writing = Pipe(duplex=False)
    pipe = ShardWriter(writing)
    for index in range(AHEAD + 2):
        pipe.put(Shard("torch.sdpa.math", index, 25, index))
    _filled(pipe)
    pipe.close()
    pipe._thread.join(20)
    assert not pipe._thread.is_alive()


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.nightly), signal.SIGINT])
def test_a_signal_to_the_controller_alone_ends_a_session_with_its_table(tmp_path, number):
    command = ["run", "--target", "torch.sdpa.math", "--cases", "5000", "--jobs", "1", "--corpus", ""]
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # bash ignores it in jobs
    code += "from fuzz.cli.main import main; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *command, "--device", "host", "--output-dir", str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
    )  # fmt: skip
    try:
        until = time.monotonic() + 100
        while not list(Reader(tmp_path).new()) and time.monotonic() < until:
            time.sleep(0.1)
        process.send_signal(number)
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130 and "Cases by target" in said and "Traceback" not in said, said
    assert f"attnfuzz run --resume {tmp_path}" in said
    assert already_ran(read_session(tmp_path))
