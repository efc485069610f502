"""cudnn.block_sparse: the lists say what the mask says; what is declared refused is refused; its kernels give the right
answers on the emulated GPU. The tests that need nvidia-cudnn-frontend are skipped where it is not importable."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed
from hypothesis import settings as drawing
from msgspec.structs import replace as replace_struct

from fuzz.core.case import Case
from fuzz.core.refusal import refusal
from fuzz.generate import cases
from fuzz.judging.judge import execute
from fuzz.session.settings import Settings
from fuzz.session.summary.dry_calls import dry_coverage
from fuzz.targets.cudnn_block_sparse import package, unsupported
from fuzz.targets.cudnn_block_sparse.arguments import size_rank
from fuzz.targets.cudnn_block_sparse.block_lists import blocks_of, size_tensor
from fuzz.targets.cudnn_block_sparse.emulated import EmulatedCudnnBlockSparse
from fuzz.targets.cudnn_block_sparse.target import dry_call
from fuzz.targets.cudnn_cute.host import installed
from fuzz.targets.cudnn_cute.lists import UNUSED, index_tensor
from oracles.masks import Blocks, Causal, Full, PerBatch, PerHead, Prefix
from oracles.problem import Problem, dense_mask

NAME = "cudnn.block_sparse"
why = "needs nvidia-cudnn-frontend" if not installed() else package.unusable()
needs_it = pytest.mark.skipif(why is not None, reason=str(why))
GRID = Blocks(64, 64, ("F.F", ".F."))
PLAIN = Problem((128,), (192,), 2, 2, 128, 128, "bfloat16", mask=GRID)


def said(problem, block, packed=False):
    """The mask that the lists say: bool (batch, heads, rows, len_k)."""
    found = blocks_of(problem, block, packed)
    keys = torch.arange(found.keys.shape[-1] * block) % block < found.keys.repeat_interleave(block, -1)
    rows = problem.len_q * (problem.group if packed else 1)
    by_block = found.listed.repeat_interleave(block, 2).repeat_interleave(block, 3)
    return (by_block & keys[:, :, None])[:, :, :rows, : problem.len_k]


@pytest.mark.parametrize(
    "mask",
    [GRID, Full(), Prefix(100), PerHead((GRID, Full())), PerBatch((Prefix(70), Blocks(64, 64, ("...", "F.."))))],
    ids=str,
)
def test_lists_and_sizes_say_the_mask(mask):
    problem = replace_struct(PLAIN, mask=mask, lengths_q=(128, 128), lengths_k=(190, 100))
    assert torch.equal(said(problem, 64), dense_mask(problem).expand(2, 2, 128, 190))


def test_packed_rows_are_those_of_all_heads_of_a_group():
    problem = replace_struct(PLAIN, heads_q=4, mask=Blocks(64, 128, ("F.", ".F")))
    kept = dense_mask(problem).expand(1, 4, 128, 192).unflatten(1, (2, 2)).transpose(2, 3).flatten(2, 3)
    assert torch.equal(said(problem, 128, packed=True), kept)
    assert blocks_of(problem, 128) is None


@pytest.mark.parametrize(
    "mask", [Causal(), Blocks(64, 64, ("M..",)), Blocks(32, 64, ("F..", ".F.")), PerHead((Full(), Causal()))]
)
def test_what_blocks_cannot_say_is_not_asked(mask):
    problem = replace_struct(PLAIN, mask=mask)
    assert blocks_of(problem, 64) is None
    assert any(rule.applies(Case(NAME, problem)) and rule.kind == "cannot" for rule in unsupported.rules(9))


def test_sizes_have_an_axis_for_what_varies():
    def rank(**changes):
        return blocks_of(replace_struct(PLAIN, lengths_q=(128, 128), lengths_k=(192, 192), **changes), 64).size_rank

    assert rank(mask=Prefix(100)) == 1
    assert rank(mask=PerBatch((Prefix(100), Prefix(120)))) == 2
    assert rank(mask=PerHead((Prefix(100), Prefix(120)))) == 3
    assert rank(mask=PerBatch((Prefix(100), Prefix(128)))) == 2


@pytest.mark.parametrize("order", ["ascending", "descending", "shuffled"])
def test_an_index_tensor_lists_each_block_once_and_nothing_after_the_count(order):
    blocks = blocks_of(replace_struct(PLAIN, mask=Full(), lengths_k=(640,)), 64)
    index = index_tensor(blocks.listed, order, 3, 12)
    assert index.shape[-1] == 12
    assert (index[..., 10:] == UNUSED).all()
    assert torch.equal(index[..., :10].sort(-1).values, torch.arange(10, dtype=torch.int32).expand(1, 2, 2, 10))
    assert size_tensor(blocks, 1).tolist() == [64] * 10


def test_wide_lists_are_rows_of_a_larger_tensor():
    case = Case(NAME, PLAIN, variant={"lists": "wide"})
    index = dry_call(case, "sm_90a")[0].forward["q2k_block_index"]
    assert index.shape[-1] == 5
    assert index.stride(2) > 5
    assert (index[..., 2:] == UNUSED).all()


def test_sizes_are_given_where_a_block_is_not_whole():
    assert size_rank(Case(NAME, PLAIN), 9) == 0
    assert size_rank(Case(NAME, replace_struct(PLAIN, mask=Prefix(190))), 9) == 1
    assert size_rank(Case(NAME, PLAIN, variant={"sizes": "3"}), 9) == 3


@pytest.mark.parametrize("family", unsupported.FAMILIES)
def test_a_third_of_the_cases_of_a_session_can_be_asked(family, monkeypatch):
    target = EmulatedCudnnBlockSparse()
    monkeypatch.setattr(type(target), "family", family)
    target.rules = unsupported.rules(family)
    outcomes, options = [], set()

    @seed(1)
    @drawing(
        max_examples=150, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(cases.cases(target, cases.SMALL, 1))
    def loop(case):
        refused = refusal(target, case)
        outcomes.append(refused.kind if refused else "asked")
        options.update(case.variant.items())
        if refused is None:
            index = dry_call(case, f"sm_{family}0a")[0].forward["q2k_block_index"]
            assert index.shape[0] == case.problem.batch

    loop()
    assert outcomes.count("asked") > 50  # of 150, about half in the mean
    ways = {"order", "layout", "empty", "counts", "bucket", "gradients"} | ({"lists"} if family == 9 else set())
    assert {name for name, _ in options} >= ways


@needs_it
@pytest.mark.parametrize("family", unsupported.FAMILIES)
@pytest.mark.parametrize("row", [row for row in unsupported.TABLE if row.kind == "refuses"], ids=lambda row: row.why)
def test_what_is_declared_refused_is_refused(row, family):
    if family not in row.families:
        pytest.skip("of the other one")
    case = row.case(NAME)
    assert row.applies(case, family)
    with pytest.raises((ValueError, NotImplementedError, RuntimeError)):
        package.planned(*dry_call(case, f"sm_{family}0a"), f"sm_{family}0a")


@needs_it
@pytest.mark.nightly
def test_every_parameter_is_given_or_has_a_reason():
    settings = Settings(targets=(NAME,), device="emulator", cases=600, seed=1)
    for surface in dry_coverage(settings)[NAME]:
        assert surface.unexplained() == [], surface.surface.name
        assert surface.stale() == []


@needs_it
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("changes", "variant"),
    [
        ({}, {}),
        ({}, {"block": "128"}),
        ({"mask": Prefix(150), "lengths_q": (100,)}, {"block": "128", "sizes": "2", "bucket": 1}),
        ({"mask": Blocks(64, 64, ("...", "F.F"))}, {"order": "descending", "layout": "bshd"}),
        ({"heads_kv": 1, "backward": False, "dim_v": 96, "dtype": "float16"}, {"lists": "wide"}),
        ({"mask": Full(), "backward": False}, {"splits": 2, "block": "128"}),
    ],
    ids=str,
)
def test_right_answers_on_the_emulated_gpu(changes, variant):
    mask = {"mask": Blocks(128, 128, (".F",))} if variant.get("block") == "128" else {}
    case = Case(NAME, replace_struct(PLAIN, **(mask | changes)), variant=variant, repeats=2)
    verdict = execute(case, EmulatedCudnnBlockSparse(), lambda phase, seconds: None)
    assert verdict.outcome == "pass", verdict
