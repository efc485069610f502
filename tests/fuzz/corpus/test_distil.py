"""Distilling a corpus: nothing that it covers is lost, no signature loses its only case, and the answer is small."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from random import Random

import pytest

from fuzz.cli.main import main
from fuzz.core.case import Case
from fuzz.core.features import feature_pairs, features
from fuzz.core.signature import explains, look_alike
from fuzz.core.verdict import Signature
from fuzz.corpus.distil import distil
from fuzz.corpus.entry import Entry
from fuzz.corpus.fewest import fewest
from fuzz.corpus.store import load_all, save
from oracles.masks import Causal
from oracles.problem import Problem

REGRESSIONS = Path(__file__).parents[3] / "corpus" / "regressions"


def case(target: str = "mine", length: int = 8, **more) -> Case:
    return Case(target, Problem((length,), (length,), 1, 1, 8, 8, "float32", backward=False, **more))


def passing(name: str, made: Case, explanation: str = "") -> Entry:
    return Entry(version=1, expect="pass", case=made, name=name, explanation=explanation)


def failing(name: str, made: Case, *names: str, tensor: str = "o", explanation: str = "") -> Entry:
    found = Signature(made.target, "wrong", "accuracy", (tensor,), features=names)
    return Entry(version=1, expect="fail", case=made, name=name, signature=found, explanation=explanation)


def names(result) -> list[str]:
    return sorted(one.entry.name for one in result.kept)


def test_a_case_that_covers_what_others_do_stands_for_them() -> None:
    both = passing("both", case(softcap=2.0, mask=Causal()))
    result = distil([passing("cap", case(softcap=2.0)), passing("causal", case(mask=Causal())), both])
    assert {"both"} <= set(names(result)) and len(result.kept) == 2  # one has no mask: 'full' is a feature
    assert result.bound == 2 and "the fewest" in str(result)


def test_equal_cases_and_equal_causes_merge_to_the_smallest() -> None:
    small, large = case(softcap=2.0), case(softcap=2.0, length=300)
    result = distil([failing("large", large, "softcap"), failing("small", small, "softcap"), passing("x", small)])
    assert names(result) == ["small"]
    assert {one.entry.name: one.instead for one in result.dropped} == {"large": "small", "x": "small"}


def test_an_explanation_is_not_lost() -> None:
    small, large = case(softcap=2.0), case(softcap=2.0, length=300)
    told = failing("told", large, "softcap", explanation="why")
    assert names(distil([failing("small", small, "softcap"), told])) == ["told"]
    mended = passing("mended", case(), "was wrong until May")
    assert "mended" in names(distil([mended, passing("all", case(softcap=2.0)), passing("same", case())]))


def test_no_signature_loses_its_only_case() -> None:
    same = case(softcap=2.0, mask=Causal())
    one, other = failing("one", same, "softcap"), failing("other", same, "causal", tensor="lse")
    assert names(distil([one, other])) == ["one", "other"]


def test_targets_cover_nothing_for_one_another() -> None:
    assert names(distil([passing("a", case("a")), passing("b", case("b"))])) == ["a", "b"]


@pytest.mark.parametrize("pairs", [False, True])
def test_nothing_that_the_real_corpus_covers_is_lost(pairs: bool) -> None:
    entries = load_all(REGRESSIONS)
    result = distil(entries, pairs=pairs)
    kept = [one.entry for one in result.kept]

    def covered(some: list[Entry]) -> set[tuple[str, ...]]:
        found: set[tuple[str, ...]] = set()
        for entry in some:
            each = features(entry.case)
            found |= {(entry.case.target, name) for name in each}
            found |= {(entry.case.target, *pair) for pair in feature_pairs(each)} if pairs else set()
        return found

    merged = {one.entry.name for one in result.dropped if one.instead}
    assert covered(kept) == covered([entry for entry in entries if entry.name not in merged])
    signed = [one.signature for one in kept if one.signature]
    for entry in entries:
        mine = entry.signature
        assert mine is None or any(
            explains(one, mine) or explains(mine, one) or look_alike(one, mine) for one in signed
        )
    assert len(kept) + len(result.dropped) == len(entries)
    assert {one.entry.name for one in result.kept} == {one.entry.name for one in distil(kept, pairs=pairs).kept}


def test_covers_are_the_fewest_and_bounds_hold() -> None:
    random = Random(5)
    for _ in range(150):
        sets = [frozenset(random.sample(range(9), random.randint(1, 4))) for _ in range(random.randint(1, 9))]
        goal = frozenset().union(*sets)
        least = next(
            size
            for size in range(1, len(sets) + 1)
            if any(frozenset().union(*some) == goal for some in combinations(sets, size))
        )
        cover = fewest(sets)
        assert frozenset().union(*(sets[number] for number in cover.chosen)) == goal
        assert cover.exact and len(cover.chosen) == least
        rough = fewest(sets, nodes=1)
        assert rough.bound <= least <= len(rough.chosen)


def test_large_covers_end_with_a_bound() -> None:
    random = Random(6)
    sets = [frozenset(random.sample(range(400), 12)) for _ in range(600)]
    cover = fewest(sets, nodes=200)
    assert frozenset().union(*(sets[number] for number in cover.chosen)) == frozenset().union(*sets)
    assert 400 / 12 <= cover.bound <= len(cover.chosen)


def test_no_case_and_empty_sets() -> None:
    assert fewest([]).chosen == () and fewest([frozenset()]).chosen == ()
    assert distil([]).kept == ()


def test_folders_of_machines_merge_on_the_command_line(tmp_path: Path, capsys) -> None:
    one, other, out = (tmp_path / name for name in ("one", "other", "out"))
    save(failing("a.json", case(softcap=2.0, length=99), "softcap"), one)
    save(failing("a.json", case(softcap=2.0), "softcap"), other)
    save(failing("b.json", case(mask=Causal()), "causal", tensor="lse"), other)
    assert main(["corpus", "distil", str(one), str(other), "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert sorted(path.name for path in out.iterdir()) == ["a.json", "b.json"]
    assert [line["file"] for line in told["dropped"]] == [str(one / "a.json")]
    assert load_all(out)[0].case.problem.lengths_q == (8,)
    assert main(["corpus", "distil", str(one), "--out", str(out)]) == 2
    assert "is not empty" in capsys.readouterr().err
    (other / "c.json").write_text("{")
    assert main(["corpus", "distil", str(other), "--out", str(tmp_path / "new")]) == 2
    assert len(list((tmp_path / "new").iterdir())) == 2
