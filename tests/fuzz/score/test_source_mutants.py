"""fuzz/score/source_mutants: one-line changes of the kernels' source, and the session that each gets."""

from __future__ import annotations

import ast

import pytest

from fuzz.score.source_mutants.operators import OPERATORS, mutants, mutated, probed
from fuzz.score.source_mutants.render import table
from fuzz.score.source_mutants.results import Result, SourceMutant, score
from fuzz.score.source_mutants.sampling import ROOT, sample
from fuzz.score.source_mutants.trial import Plan, probe, try_mutant

SOURCE = '''"""Text."""

LIMIT = 3


def kernel(q: int = 1, k=2, flag=True):
    """Text with 3 < 4."""
    if q > 7:
        raise ValueError(f"{q + 1}")
    if not flag and q <= k:
        q += 1
    total = ceil_div(q, k) * 2
    store(total, k)
    return min(q, total)
'''


def changes(operator: str) -> set[str]:
    return {
        mutated(SOURCE, m).splitlines()[m.line - 1].strip() for m in mutants(SOURCE, "x.py") if m.operator == operator
    }


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        ("comparison", {"if not flag and q < k:"}),
        ("arithmetic", {"q -= 1", "total = ceil_div(q, k) + 2"}),
        ("number", {"q += 2", "q += 0", "total = ceil_div(q, k) * 3", "total = ceil_div(q, k) * 1"}),
        ("logic", {"if not flag or q <= k:", "if flag and q <= k:"}),
        ("condition", {"if not (not flag and q <= k):"}),
        ("function", {"total = ((q) // (k)) * 2", "return max(q, total)"}),
        ("arguments", {"total = ceil_div(k, q) * 2", "store(k, total)", "return min(total, q)"}),
        ("statement", {"pass"}),
    ],
)
def test_what_an_operator_makes(operator: str, expected: set[str]) -> None:
    assert changes(operator) == expected


def test_a_name_becomes_one_that_the_file_knows() -> None:
    assert "store(total, q)" in changes("name")
    assert not any("v" in change.replace("divflagvalue", "") for change in changes("name") if "store" in change)


def test_refusals_defaults_annotations_and_texts_are_left_alone() -> None:
    lines = {m.line for m in mutants(SOURCE, "x.py")}
    assert lines == {10, 11, 12, 13, 14}


@pytest.mark.nightly
def test_all_mutants_of_the_bundled_kernels_are_python() -> None:
    drawn = sample("blocksparse", 120, seed=3) + sample("sdpa", 40, seed=3)
    assert {mutant.operator for mutant in drawn} == set(OPERATORS)
    for mutant in drawn:
        text = (ROOT / mutant.file).read_text()
        assert mutated(text, mutant) != text
        ast.parse(mutated(text, mutant))
        ast.parse(probed(text, mutant))


@pytest.mark.nightly
def test_a_larger_sample_begins_with_the_smaller_one() -> None:
    assert sample("sdpa", 30, seed=1)[:10] == sample("sdpa", 10, seed=1)
    assert sample("sdpa", 10, seed=1) != sample("sdpa", 10, seed=2)


def test_a_score_leaves_out_what_no_session_comes_to() -> None:
    drawn = sample("sdpa", 4, seed=1)
    statuses = ("found", "missed", "not_reached", "stillborn")
    results = [Result(m.id, m, status, 3) for m, status in zip(drawn, statuses, strict=True)]
    made = score(results, seed=1, cases=60, target="sdpa")
    assert made.rate == 0.5
    assert {one.status for one in made.survivors} == {"missed", "not_reached"}
    assert "1 of 2 one-line changes of sdpa" in table(made)


OF_INTERPRETER = "tile, batch_head = index // (batches * heads), index % (batches * heads)"


def _at(file: str, before: str, after: str) -> SourceMutant:
    found = mutants((ROOT / file).read_text(), file)
    return next(m for m in found if m.before == before and m.after == after)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("mutant", "status"),
    [
        (("kernels/sdpa/scores.py", "rP = tl.exp2(rS * (scale * LOG2E) - rLSE)", "+"), "found"),
        # of Triton's interpreter alone, in which sessions do not run these kernels
        (("kernels/sdpa/forward.py", OF_INTERPRETER, "%"), "not_reached"),
    ],
)
def test_a_mutant_is_found_by_a_session_of_its_own(mutant: tuple[str, str, str], status: str) -> None:
    plan = Plan("sdpa", "host", 20, 0, 200.0)
    result = try_mutant(_at(*mutant), plan)
    if result.status == "missed":
        result = probe(result, plan)
    assert result.status == status
    if status == "found":
        assert result.by.startswith("fail:accuracy")
        assert result.cases <= 5
