"""The union of operations: every table has a row for each, and files of attention keep their ids."""

from __future__ import annotations

import typing
from pathlib import Path

import pytest

from fuzz.core.case import Case, CaseError, from_json, to_json
from fuzz.core.features import FEATURES_OF
from fuzz.corpus.store import load_case
from fuzz.generate.cases import CASES
from fuzz.judging.operations import OPERATIONS
from fuzz.script.write import PAGES
from oracles.metamorphic.relations import TABLE
from oracles.native_sparse.problem import NativeSparse

ROOT = Path(__file__).resolve().parents[3]
OPS = {kind.__struct_config__.tag for kind in typing.get_args(typing.get_type_hints(Case)["problem"])}
SPARSE = NativeSparse((300, 130), 4, 2, 64, "bfloat16", "packed", causal="strict", w_k=True)


def test_every_table_has_a_row_for_each_operation():
    assert {"attention", "native_sparse_attention"} == OPS
    for table in (FEATURES_OF, CASES, OPERATIONS, PAGES):
        assert set(table) == OPS
    assert {op for relation in TABLE for op in relation.operations} == OPS


def test_files_of_attention_have_the_ids_that_they_had_before_the_union():
    """Of every committed file at the time; one that is added later changes nothing."""
    names = (Path(__file__).with_name("ids_of_attention.txt")).read_text().split()
    for name, expected in zip(names[::2], names[1::2], strict=True):
        assert load_case(ROOT / name).id == expected, name
    assert len(names) > 300


def test_a_case_of_native_sparse_attention_survives_its_file():
    case = Case("nsa", SPARSE)
    text = to_json(case)
    assert '"op": "native_sparse_attention"' in text
    assert from_json(text) == case
    assert from_json(text).id == case.id


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [("op", "another", "problem"), ("causal", "loosely", "causal"), ("lengths", [], "lengths"), ("mask", {}, "mask")],
)
def test_what_is_no_problem_is_refused_in_one_line(field, value, message):
    import json

    given = json.loads(to_json(Case("nsa", SPARSE)))
    given["problem"][field] = value
    with pytest.raises(CaseError, match=message):
        from_json(json.dumps(given))
