"""The published configurations of the must-pass list: their metadata is right, and their deterministic backward pass
ends, ascending, descending and under a computed schedule, with few and with many resident CTAs."""

from pathlib import Path

import msgspec
import pytest
from accepted_by_oracles import assert_accepted
from covering import daily

from fuzz.corpus.store import load
from kernels.blocksparse.lists.from_mask import from_predicate
from kernels.blocksparse.lists.schedule import ASCENDING, DESCENDING
from kernels.blocksparse.lists.write_order import with_order
from kernels.blocksparse.planner.planner import least_blocking
from oracles.masks import keep

FOLDER = Path(__file__).parents[4] / "corpus" / "must_pass"
FILES = sorted(
    path for name in ("seed000_*", "seed001_*", "published_fa_deadlock_*") for path in FOLDER.glob(name + ".json")
)
SMALL = 1 << 23  # pairs; of larger ones one query head in each group is checked


def test_the_twelve_configurations_are_there_plain_packed_and_with_gqa():
    names = {path.stem for path in FILES}
    for kind in ("full", "causal", "sliding_window"):
        for size in ("1k", "4k"):
            assert {f"seed001_{kind}_{size}", f"seed001_varlen_{kind}_{size}"} <= names
            assert f"published_fa_deadlock_packed_{kind}_{size}" in names
        assert {f"published_fa_deadlock_{kind}_4k_gqa", f"published_fa_deadlock_varlen_{kind}_4k_gqa"} <= names


@pytest.mark.parametrize("path", daily(FILES, FILES[::3]), ids=lambda path: path.stem)
def test_metadata_are_right_and_the_backward_pass_ends(path):
    problem = load(path).case.problem
    if problem.pairs > SMALL:
        problem = replace_heads(problem)
    mask, lengths_q, lengths_k = problem.mask, problem.lengths_q, problem.lengths_k
    blocks = from_predicate(
        lambda b, h, q, k: keep(mask, q, k, batch=b, head=h, len_q=lengths_q[b], len_k=lengths_k[b]),
        lengths_q,
        lengths_k,
    )
    for schedule in (ASCENDING, DESCENDING):
        assert_accepted(with_order(blocks, schedule), problem)
    plan = least_blocking(blocks, heads_q=problem.heads_q, heads_kv=problem.heads_kv)
    assert_accepted(plan.blocks, problem)


def replace_heads(problem):
    """One query head for each KV head: no mask here tells heads apart."""
    return msgspec.structs.replace(problem, heads_q=problem.heads_kv)
