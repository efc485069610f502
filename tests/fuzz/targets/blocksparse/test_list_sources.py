"""Lists by way of ranges and of LinearBlockSparse tuples: right on the emulated GPU, and refused for other masks."""

import pytest

pytest.importorskip("cutlass")
pytest.importorskip("numba")

from blocksparse_shown import INTERVALS, _of

from fuzz.core.refusal import refusal
from fuzz.judging.judge import execute
from fuzz.targets.registry import load
from oracles.masks import Documents


@pytest.mark.parametrize("source", ["ranges", "linear"])
def test_lists_of_another_source_give_the_right_answer(source):
    case = _of(150, 150, mask=Documents((40, 90)), variant=INTERVALS | {"source": source})
    found = execute(case, load("blocksparse"), lambda phase, limit: None)
    assert found.outcome == "pass", found


def test_other_masks_have_no_other_source():
    assert refusal(load("blocksparse"), _of(variant={"source": "linear"})) is not None


def test_sequences_that_differ_have_no_ranges():
    ragged = _of((150, 90), (150, 90), mask=Documents((40, 90)), variant=INTERVALS | {"source": "ranges"})
    assert "ranges" in str(refusal(load("blocksparse"), ragged))
