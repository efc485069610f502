"""Turns between processes."""

import multiprocessing
import os
import time

from fuzz.process.turn import turn

FORK = multiprocessing.get_context("fork")


def _hold(what, places, patience, pipe, seconds):
    with turn(what, places, patience) as has_place:
        pipe.send((has_place, time.monotonic()))
        time.sleep(seconds)
        pipe.send(time.monotonic())


def _start(what, places=1, patience=30.0, seconds=0.3):
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=_hold, args=(what, places, patience, theirs, seconds))
    process.start()
    return process, ours


def _name():
    return f"test-{os.getpid()}-{time.monotonic_ns()}"


def test_one_place_is_held_by_one_process_at_a_time():
    name = _name()
    both = [_start(name) for _ in range(2)]
    spans = sorted((pipe.recv(), pipe.recv()) for _, pipe in both)
    spans = sorted((began, ended) for (has_place, began), ended in spans if has_place)
    assert len(spans) == 2 and spans[0][1] <= spans[1][0]


def test_two_places_are_held_at_once():
    name = _name()
    both = [_start(name, places=2, seconds=20) for _ in range(2)]
    assert [pipe.recv()[0] for _, pipe in both] == [True, True]  # neither has ended
    for process, _ in both:
        process.kill()


def test_a_process_goes_on_without_a_place_when_its_patience_is_over():
    name = _name()
    holder, pipe = _start(name, seconds=60)
    pipe.recv()
    with turn(name, 1, 0.05) as has_place:
        assert not has_place
    holder.kill()
    holder.join()
    with turn(name, 1, 10) as has_place:  # a killed process holds nothing
        assert has_place


def test_without_a_folder_for_locks_it_goes_on(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "file"))
    with turn("cuda", 1, 60.0) as has_place:
        assert not has_place
