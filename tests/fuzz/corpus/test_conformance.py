"""The matrix: what counts as a pass, what does not, and what fails a run."""

import json
from pathlib import Path

import msgspec
import pytest
from minimize_bugs import failure, plain

from fuzz.core.signature import signature
from fuzz.core.support import Rule, Support
from fuzz.core.target import Target
from fuzz.core.verdict import Finding, Verdict
from fuzz.corpus.conformance import cases_of, conformance
from fuzz.corpus.entry import ANY_TARGET, Entry
from fuzz.corpus.store import load_all
from fuzz.targets.registry import load

SUPPORT = Support(dtypes=("float32",), softcap=True)
RULE = Rule("softcap with a causal mask", lambda case: case.problem.softcap == 7.0, "refuses")


class Mine(Target):
    name = "mine"
    support = SUPPORT
    rules = (RULE,)


class MineEmulated(Mine):
    device = "emulator"


TARGET = Mine()


def must_pass(name="a", **changes):
    case = msgspec.structs.replace(plain(((64, 64),), **changes), target=ANY_TARGET)
    return Entry(version=1, expect="pass", case=case, name=f"{name}.json")


def row(entry, verdict, **options):
    def run_case(case):
        assert case.target == "mine"
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    matrix = conformance(TARGET, [entry], run_case, **options)
    (found,) = matrix.rows
    assert found.name == "a"
    return found.status, found.reason, matrix.ok


PASSED = Verdict("0", "pass", ratio=0.25, seconds={"run": 0.5, "judge": 0.25})
REFUSED = Verdict("0", "reject", reason="refused as declared: softcap with a causal mask")
ACCEPTED = Verdict("0", "fail", (Finding("protocol", "accepted", "accepted what it declares to refuse"),))
KNOWN = Entry(
    version=1,
    expect="fail",
    case=msgspec.structs.replace(plain(), target="mine"),
    signature=signature(msgspec.structs.replace(plain(), target="mine"), failure(plain())),
    explanation="why",
    name="a.json",
)


@pytest.mark.parametrize(
    ("entry", "verdict", "status", "ok"),
    [
        (must_pass(), PASSED, "pass", True),
        (must_pass(), failure(plain()), "fail", False),
        (must_pass(), failure(plain(), outcome="hang"), "hang", False),
        (must_pass(), failure(plain(), outcome="crash"), "crash", False),
        (must_pass(), failure(plain(), outcome="flake"), "flake", False),
        (must_pass(), RuntimeError("no child\nat all"), "missing", False),
        (must_pass(), Verdict("0", "missing"), "missing", False),
        (must_pass(), Verdict("0", "reject", reason="oh"), "fail", False),
        (must_pass(dtype="bfloat16"), RuntimeError("is not run"), "cannot", True),
        (must_pass(softcap=7.0), REFUSED, "reject", True),
        (must_pass(softcap=7.0), ACCEPTED, "unexpected_pass", False),
        (must_pass(softcap=7.0), PASSED, "unexpected_pass", False),
        (KNOWN, failure(plain()), "known", True),
        (KNOWN, PASSED, "unexpected_pass", False),
        (KNOWN, failure(plain(), ("o",)), "fail", False),
    ],
)
def test_a_row_says_what_the_target_makes_of_a_file(entry, verdict, status, ok):
    found, reason, all_ok = row(entry, verdict)
    assert (found, all_ok) == (status, ok)
    assert "\n" not in reason
    assert bool(reason) == (status != "pass")


def test_big_cases_are_not_run_unless_everything_is():
    big = must_pass(lengths_q=(2048,), lengths_k=(2048,))
    assert row(big, PASSED) == ("not run", "16 million pairs: only with --all or on a GPU", True)
    assert row(big, PASSED, everything=True)[0] == "pass"


def test_the_emulated_gpu_runs_larger_cases_than_a_cpu():
    emulated = MineEmulated()
    at, above = (must_pass(lengths_q=(length,), lengths_k=(2048,)) for length in (2048, 2049))
    assert [case.problem.len_q for case in cases_of(emulated, [at, above])] == [2048]
    assert cases_of(TARGET, [at]) == [] and len(cases_of(TARGET, [at], everything=True)) == 1
    assert {row.status for row in conformance(emulated, [at], lambda case: PASSED).rows} == {"pass"}


def test_the_dearest_masks_of_seed_001_are_run_on_the_emulated_gpu():
    entries = [e for e in load_all(Path(__file__).parents[3] / "corpus" / "must_pass") if e.name.startswith("seed001")]
    target = load("blocksparse")
    if target.device != "emulator":
        pytest.skip("there is no emulated GPU here")
    assert len(cases_of(target, entries)) == 12


def test_cases_of_other_targets_are_not_rows():
    assert conformance(TARGET, [msgspec.structs.replace(KNOWN, case=plain())], lambda case: PASSED).rows == ()


def test_the_table_and_its_json_say_the_same():
    entries = [must_pass("a_long_name"), must_pass("b", dtype="float16"), must_pass("c", softcap=7.0)]
    matrix = conformance(TARGET, entries, lambda case: REFUSED if case.problem.softcap else PASSED)
    assert matrix.render().splitlines() == [
        "a_long_name  pass             0.25 of the budget",
        "b            cannot                                 dtype is not one of float32",
        "c            reject                                 refused as declared: softcap with a causal mask",
        "mine: 1 pass, 1 cannot, 1 reject",
    ]
    told = json.loads(matrix.to_json())
    assert (told["target"], told["ok"], told["counts"]) == ("mine", True, {"pass": 1, "cannot": 1, "reject": 1})
    assert told["rows"][0] == {"name": "a_long_name", "status": "pass", "reason": "", "ratio": 0.25, "seconds": 0.75}
