"""The corpus: files are whole or absent, one per finding, readable, and say what is wrong with them in one line."""

import errno
import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import msgspec
import pytest
from minimize_bugs import Probe, failure, plain, tail
from runner_tools import case

from fuzz.core import features
from fuzz.core.case import CaseError, Inputs, to_json
from fuzz.core.signature import signature
from fuzz.core.verdict import Finding, Location, Signature, Verdict
from fuzz.corpus import store
from fuzz.corpus.entry import ANY_TARGET, CorpusError, Entry, Found
from fuzz.corpus.replay import known, replay
from fuzz.corpus.store import encode, load, load_all, load_before, load_case, save
from fuzz.minimize import minimize
from oracles.masks import Blocks, Causal, Full, Intervals, PerHead
from oracles.problem import Bias


def entry(case=None, verdict=None, **changes):
    case = case or plain()
    verdict = verdict or failure(case)
    made = Entry(version=1, expect=verdict.outcome, case=case, signature=signature(case, verdict))
    return msgspec.structs.replace(made, **changes)


PASSES = Entry(version=1, expect="pass", case=plain(), source="a list")


def test_an_entry_comes_back_as_it_was_saved(tmp_path):
    found = Found("2026-01-01", "host", {"torch": "2.13"}, 3, 12)
    whole = entry(explanation="why", source="a report", found=found, runs=17)
    for number, made in enumerate((whole, entry(), PASSES)):
        path = save(made, tmp_path / "new" / str(number))
        assert msgspec.structs.replace(load(path), name="") == made
        assert load(path).name == path.name


def test_what_minimize_writes_beside_an_entry_is_not_read_as_one(tmp_path):
    path = save(entry(), tmp_path)
    path.with_suffix(".min.json").write_text(to_json(plain()))
    assert load_all(tmp_path) == [load(path)]


def test_a_minimised_failure_becomes_an_entry_that_explains_the_raw_one(tmp_path):
    case = plain(((447, 447), (65, 65)), softcap=3.0)
    made = Entry.of(minimize(case, Probe(tail)), device="host")
    assert (made.found.failed, made.found.probed, made.known) == (5, 5, False)
    assert set(made.found.versions) >= {"python", "torch"}
    raw = signature(case, failure(case))
    saved = load(save(made, tmp_path))
    assert known(raw, [saved]) is None  # nobody has explained it yet
    explained = msgspec.structs.replace(saved, explanation="the last tile's rows")
    assert known(raw, [PASSES, explained]) == explained


def test_files_are_for_people(tmp_path):
    made = entry(plain(mask=Intervals((((0, 3), (5, 9)), ((1, 2),)))), explanation="größer ≥ 3, like [1,2]")
    text = encode(made)
    assert '"rows": [[[0, 3], [5, 9]], [[1, 2]]]' in text
    assert "größer ≥ 3, like [1,2]" in text
    assert text.index('"explanation"') < text.index('"case"')
    name = save(made, tmp_path).name
    assert name.startswith("fake_wrong_dk_dv_heads_len-q-tail")
    assert name.endswith(f"_{made.signature.id}.json")


def _save_many(folder, ready, times):
    features.facts.__globals__["_any_row_without_keys"] = lambda problem: False  # torch may hang after a fork
    ready.wait()
    for _ in range(times):
        save(entry(), folder)


def test_workers_with_one_finding_leave_one_whole_file(tmp_path):
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    workers = [context.Process(target=_save_many, args=(tmp_path, ready, 20)) for _ in range(4)]
    for worker in workers:
        worker.start()
    ready.set()
    for worker in workers:
        worker.join(30)
        assert worker.exitcode == 0
    assert [path.name for path in tmp_path.iterdir()] == [save(entry(), tmp_path).name]
    assert load_all(tmp_path)[0].case == plain()


def test_a_file_that_is_there_is_not_written_over(tmp_path):
    path = save(entry(), tmp_path)
    path.write_text(encode(entry(explanation="mine")))
    assert save(entry(), tmp_path) == path
    assert load(path).explanation == "mine"


@pytest.mark.parametrize("broken", ["write", "fsync", "link"])
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, broken):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if broken == "write":
        monkeypatch.setattr(store, "_write", lambda path, text: (path.write_text(text[:40]), full()))
    else:
        monkeypatch.setattr(os, broken, full)
    with pytest.raises(CorpusError, match=r"^[^\n]*\.json: cannot be saved: No space left on device$"):
        save(entry(), tmp_path)
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []
    assert save(entry(), tmp_path).exists()


def test_a_file_system_without_links_is_served_too(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    path = save(entry(), tmp_path)
    assert load_all(tmp_path) == [load(path)]


def _save_until_killed(folder):
    features.facts.__globals__["_any_row_without_keys"] = lambda problem: False  # torch may hang after a fork
    for number in range(10**6):
        save(entry(plain(heads=(2 + number, 1)), failure(plain(), (f"t{number}",))), folder)


def test_a_kill_in_mid_write_leaves_no_half_file(tmp_path):
    context = multiprocessing.get_context("fork")
    for number in range(5):
        worker = context.Process(target=_save_until_killed, args=(tmp_path,))
        worker.start()
        time.sleep(0.05 + 0.013 * number)
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
    assert len(load_all(tmp_path)) > 5


def test_leftovers_are_not_read_and_go_when_they_are_old(tmp_path):
    old, fresh = tmp_path / ".a.json.1.aa.tmp", tmp_path / ".b.json.2.bb.tmp"
    for path in (old, fresh):
        path.write_text('{"version"')
    os.utime(old, (1, 1))
    assert load_all(tmp_path) == []
    save(entry(), tmp_path)
    assert (old.exists(), fresh.exists()) == (False, True)


BROKEN = {
    "half a file": (lambda d: None, "not JSON"),
    "unknown field": (lambda d: d | {"wrong": 1}, "unknown field `wrong`"),
    "no case": (lambda d: {k: v for k, v in d.items() if k != "case"}, "missing required field `case`"),
    "version of the future": (lambda d: d | {"version": 2}, "version: this program reads version 1, got 2"),
    "outcome": (lambda d: d | {"expect": "fine"}, "expect: Invalid enum value 'fine'"),
    "a failure without signature": (lambda d: d | {"signature": None}, "signature: is missing, and expect is 'fail'"),
    "a case that is none": (
        lambda d: d | {"case": d["case"] | {"problem": d["case"]["problem"] | {"heads_kv": 3}}},
        "case.problem: heads_kv: must divide heads_q = 4, got 3",
    ),
    "a type": (lambda d: d | {"case": d["case"] | {"repeats": "three"}}, "case.repeats: Expected `int`, got `str`"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_malformed_file_is_one_line_that_names_file_and_field(tmp_path, name):
    change, message = BROKEN[name]
    path = save(entry(), tmp_path)
    changed = change(json.loads(path.read_text()))
    path.write_text(path.read_text()[:99] if changed is None else json.dumps(changed))
    with pytest.raises(CorpusError) as caught:
        load_all(tmp_path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(CorpusError, match=r"nowhere: no such folder$"):
        load_all(tmp_path / "nowhere")


def test_a_case_is_read_from_a_case_file_or_an_entry(tmp_path):
    (tmp_path / "case.json").write_text(to_json(plain()))
    assert load_case(tmp_path / "case.json") == plain()
    assert load_case(save(entry(), tmp_path)) == plain()
    (tmp_path / "none.json").write_text('{"target"')
    with pytest.raises(CaseError, match="not JSON"):
        load_case(tmp_path / "none.json")


def answer(verdict):
    return lambda case: verdict


PASSED, WRONG = Verdict("0", "pass"), failure(plain())
OTHER = failure(plain(), ("o",))
EXPLAINED = entry(explanation="why")


@pytest.mark.parametrize(
    ("what", "verdict", "status", "ok"),
    [
        (PASSES, PASSED, "pass", True),
        (PASSES, WRONG, "fail", False),
        (EXPLAINED, WRONG, "known", True),
        (EXPLAINED, PASSED, "unexpected_pass", False),
        (EXPLAINED, OTHER, "fail", False),
        (EXPLAINED, failure(plain(), outcome="hang"), "fail", False),
        (entry(), WRONG, "new", False),
        (entry(), PASSED, "unexpected_pass", False),
        (EXPLAINED, Verdict("0", "reject", reason="cannot express: no bias"), "skip", True),
    ],
)
def test_a_replay_says_what_it_means(what, verdict, status, ok):
    found = replay(what, answer(verdict))
    assert (found.status, found.ok, found.verdict) == (status, ok, verdict)


def test_a_failure_of_another_type_is_not_the_known_one():
    raised = Verdict("0", "fail", (Finding("protocol", "raised", "raised TypeError: x"),))
    assert replay(entry(plain(), raised, explanation="why"), answer(raised)).status == "known"
    assert replay(EXPLAINED, answer(raised)).status == "fail"


def test_a_flaky_entry_gets_more_runs_before_it_counts_as_passing():
    flaky = msgspec.structs.replace(EXPLAINED, found=Found(failed=4, probed=12))
    outputs = iter([PASSED] * 5 + [WRONG])
    assert replay(flaky, lambda case: next(outputs)).status == "known"
    never = replay(flaky, answer(PASSED))
    assert (never.status, never.runs) == ("unexpected_pass", 10)


REGRESSIONS = Path(__file__).parents[3] / "corpus" / "regressions"
BIAS_ALONE = Inputs(detached=("q", "k", "v"))


@pytest.mark.parametrize(
    ("made", "error", "explained"),
    [
        (plain(((65, 65), (65, 65)), (1, 1), bias=Bias(heads=True), dtype="bfloat16", scale=0.1), "RuntimeError", True),
        (plain(((64, 64),), (2, 2), bias=Bias(rows=False), mask=Blocks(64, 64, (".",))), "RuntimeError", True),
        (
            plain(((3, 384), (3, 384)), bias=Bias(), mask=PerHead((Full(), Causal("bottom_right")))),
            "RuntimeError",
            True,
        ),
        (plain(((65, 65),), bias=Bias()), "TypeError", False),
        (plain(((65, 65),), bias=Bias(grad=False)), "RuntimeError", False),
    ],
)
def test_a_gradient_of_the_mask_alone_is_known_in_any_shape(made, error, explained):
    """The LSE that PyTorch's memory-efficient kernel did not keep is missing whatever the lengths, dtype and mask are;
    the message names strideB with one head, else strideH."""
    entries = [e for e in load_all(REGRESSIONS) if e.case.target == "torch.sdpa.efficient"]
    detached = BIAS_ALONE if made.problem.bias.grad else Inputs(detached=("q", "k"))
    asked = msgspec.structs.replace(made, target="torch.sdpa.efficient", inputs=detached)
    raised = Finding("protocol", "raised", "LSE is not correctly aligned", place=Location(pattern=error))
    found = known(signature(asked, Verdict(asked.id, "fail", (raised,))), entries)
    assert (found is not None) == explained
    if found is not None:
        assert found.name == "torch.sdpa.efficient_raised_gradient_of_mask_alone_cuda.json"
    some = msgspec.structs.replace(asked, inputs=Inputs(detached=("q",)))
    assert known(signature(some, Verdict(some.id, "fail", (raised,))), entries) is None


def test_the_must_pass_list_is_sound():
    """Every file parses, says where it is from, is for any target, and is no copy of another."""
    entries = load_all(Path(__file__).parents[3] / "corpus" / "must_pass")
    assert len(entries) >= 100
    assert all(e.expect == "pass" and e.case.target == ANY_TARGET and e.source for e in entries)
    assert {e.name.split("_")[0] for e in entries} == {"published", *(f"seed00{n}" for n in range(5))}
    assert sum(e.name.startswith("seed004_") and e.name[8:10].isdigit() for e in entries) == 14
    assert sum(e.name.startswith("seed001_") for e in entries) == 12
    cases = {}
    for e in entries:
        assert cases.setdefault(e.case.id, e.name) == e.name


def test_the_cases_that_an_entry_needs_before_it_run_first(tmp_path):
    one, other = case("honest"), case("honest", 9)
    sign = Signature(one.target, "wrong", "accuracy", ("o",))
    path = save(Entry.as_met(one, "fail", sign, device="host", after=(other,)), tmp_path)
    assert load_before(path) == (other,)
    ran = []
    replay(load(path), lambda it: (ran.append(it), Verdict(it.id, "pass"))[1])
    assert ran == [other, one]
