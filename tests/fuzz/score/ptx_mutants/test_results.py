"""Scores of results, and going on with a folder."""

import msgspec
import pytest

from fuzz.score.ptx_mutants.__main__ import write_score
from fuzz.score.ptx_mutants.render import line, table
from fuzz.score.ptx_mutants.results import PtxMutant, Result, score
from fuzz.score.ptx_mutants.run import RESULTS, SETTINGS, _kept


def result(number: int, status: str, **more) -> Result:
    bug = PtxMutant(
        "config", "forward", "barrier_dropped" if number % 2 else "guard_dropped", number, "bar.sync 0;", ";"
    )
    return Result(bug.id, bug, status, **more)


FOUND = [result(n, "found", by="emulator:race", cases=n, seconds=0.5) for n in (1, 2, 3)]


def test_equivalent_bugs_and_those_that_no_case_comes_to_do_not_count_in_the_rate():
    scored = score([*FOUND, result(4, "missed"), result(5, "equivalent"), result(6, "not_reached")], 6, 1)
    assert (scored.found, scored.missed, scored.equivalent, scored.not_reached) == (3, 1, 1, 1)
    assert scored.rate == 0.75
    assert (scored.median_cases, scored.worst_cases) == (2, 3)


def test_survivors_are_listed_whole():
    missed = result(4, "missed", same_bits=True)
    assert score([*FOUND, missed], 4, 1).survivors == (missed,)


def test_the_tables_hold_every_operator_and_the_rate():
    scored = score([*FOUND, result(4, "missed")], 4, 1)
    text = table(scored)
    assert "| barrier dropped | 2 | 2 | 0 | 0 | 0 |" in text
    assert "| guard dropped | 2 | 1 | 0 | 1 | 0 |" in text
    assert line(scored) in text
    assert "3 of 4" in line(scored)


def test_a_bug_has_the_same_id_for_the_same_change_only():
    assert FOUND[0].bug.id == result(1, "missed").bug.id
    assert FOUND[0].bug.id != FOUND[1].bug.id


def test_a_bug_that_another_process_sent_has_the_same_id():
    """A string that was decoded is equal to a field's default and is another object."""
    bug = PtxMutant("config", "forward", "guard_dropped", 1, "a", ";")
    sent = PtxMutant("config", "forward", "guard_dropped", 1, "a", ";", target="".join(["block", "sparse"]))
    assert sent.target is not bug.target
    assert sent.id == bug.id
    assert sent.id != PtxMutant("config", "forward", "guard_dropped", 1, "a", ";", target="nsa").id


def test_what_a_folder_holds_is_read_back_without_a_line_that_was_cut_off(tmp_path):
    (tmp_path / RESULTS).write_bytes(b"".join(msgspec.json.encode(x) + b"\n" for x in FOUND)[:-9])
    assert _kept(tmp_path, 1) == FOUND[:-1]


def test_a_folder_of_another_seed_is_refused(tmp_path):
    _kept(tmp_path, 1)
    assert (tmp_path / SETTINGS).exists()
    with pytest.raises(ValueError, match="seed 1, not of blocksparse, sm_90a and seed 2"):
        _kept(tmp_path, 2)


def test_a_folder_of_another_target_is_refused(tmp_path):
    _kept(tmp_path, 1, "nsa")
    with pytest.raises(ValueError, match="nsa, sm_90a and seed 1, not of dynamic_mask, sm_90a and seed 1"):
        _kept(tmp_path, 1, "dynamic_mask")


def test_kernels_of_one_function_are_counted_together():
    kinds = ("mean_kernel", "mean_kernel.2")
    bugs = [PtxMutant("config", kind, "guard_dropped", 1, "@%p1 ret;", ";", target="nsa") for kind in kinds]
    (share,) = score([Result(bug.id, bug, "found") for bug in bugs], 2, 1).kinds
    assert (share.name, share.bugs) == ("mean_kernel", 2)


def test_a_file_holds_the_scores_of_several_targets(tmp_path):
    path = tmp_path / "scores.json"
    for target, rate in (("nsa", 1), ("dynamic_mask", 2), ("nsa", 3)):
        write_score(path, target, {"rate": rate})
    assert msgspec.json.decode(path.read_bytes()) == {"targets": {"dynamic_mask": {"rate": 2}, "nsa": {"rate": 3}}}
