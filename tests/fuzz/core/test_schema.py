"""The published JSON Schema: up to date, takes every case of the corpus and what we draw, refuses what we refuse."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from fuzz.core import schema
from fuzz.core.case import SCHEMA_PATH, Case, Inputs, Storage, to_json
from oracles.masks import (
    And,
    Blocks,
    Causal,
    Documents,
    Full,
    Intervals,
    Not,
    Or,
    PerBatch,
    PerHead,
    Prefix,
    Tokens,
    Window,
)
from oracles.problem import Bias, Problem

ROOT = Path(__file__).resolve().parents[3]
ENTRIES = sorted((ROOT / "corpus").rglob("*.json"))


@pytest.fixture(scope="module")
def validator():
    found = json.loads(SCHEMA_PATH.read_text())
    jsonschema.Draft202012Validator.check_schema(found)
    return jsonschema.Draft202012Validator(found)


def test_the_file_is_what_the_code_says():
    assert SCHEMA_PATH.read_text() == schema.text(), "run: python -m fuzz.core.schema"


def test_every_case_of_the_corpus_is_valid(validator):
    assert ENTRIES
    for path in ENTRIES:
        entry = json.loads(path.read_text())
        errors = list(validator.iter_errors(entry.get("case", entry)))
        assert not errors, f"{path}: {errors[0].message}"


def test_every_part_of_a_case_is_in_the_schema(validator):
    leaves = (
        Full(),
        Causal("bottom_right"),
        Window(None, 2),
        Prefix(3),
        Documents((1,), (2,)),
        Intervals((((0, 1),), ())),
        Blocks(2, 2, ("FM.",), 3),
        Tokens(("01", "")),
    )
    mask = PerHead((And(leaves), Or((Not(Full()), PerBatch((Causal(), Prefix(0)))))))
    problem = Problem((3, 0), (5, 7), 4, 2, 8, 16, "bfloat16", "packed", mask, 0.5, 30.0, Bias(True, dtype="float32"))
    case = Case("mine", problem, Inputs(7, "needle", q=Storage("bshd", 1, 3)), {"tile": 64, "split": True, "x": "y"}, 5)
    validator.validate(json.loads(to_json(case)))


@pytest.mark.parametrize(
    "change",
    [
        {"retries": 1},
        {"target": 3},
        {"problem": []},
        {"inputs": {"distribution": "gauss"}},
        {"variant": {"tile": [1]}},
    ],
    ids=str,
)
def test_what_is_no_case_is_not_valid(validator, change):
    good = json.loads(to_json(Case("x", Problem((1,), (1,), 1, 1, 8, 8, "float32"))))
    validator.validate(good)
    assert not validator.is_valid(good | change)
