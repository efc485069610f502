"""cudnn.nsa_selection: the lists say what the mask says; its kernels give the right answers on the emulated GPU. The
tests that need nvidia-cudnn-frontend are skipped where it is not importable."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed
from hypothesis import settings as drawing
from msgspec.structs import replace as replace_struct

from fuzz.core.case import Case, Inputs, Storage
from fuzz.core.refusal import refusal
from fuzz.generate import cases
from fuzz.judging.judge import execute
from fuzz.session.settings import Settings
from fuzz.session.summary.dry_calls import dry_coverage
from fuzz.targets.cudnn_cute.host import installed
from fuzz.targets.cudnn_cute.lists import UNUSED
from fuzz.targets.cudnn_nsa import package
from fuzz.targets.cudnn_nsa.block_lists import lists_of
from fuzz.targets.cudnn_nsa.target import CudnnNsaSelection, dry_call
from fuzz.tensors.arena import build
from oracles.masks import And, Blocks, Causal, Full, PerBatch, PerHead, Window
from oracles.problem import Problem, dense_mask

NAME = "cudnn.nsa_selection"
why = "needs nvidia-cudnn-frontend" if not installed() else package.unusable()
needs_it = pytest.mark.skipif(why is not None, reason=str(why))
GRID = Blocks(1, 16, ("F.", ".F", "FF", "..") * 8)
PLAIN = Problem((32,), (32,), 2, 1, 64, 64, "bfloat16", layout="packed", mask=GRID, backward=False)


def said(problem, block, causal):
    """The mask that the lists say of one sequence: bool (heads_kv, tokens, tokens)."""
    listed = lists_of(problem, block, causal).listed.transpose(0, 1)
    tokens = torch.arange(problem.len_q)
    kept = listed.repeat_interleave(block, 2)[..., : problem.len_k]
    return kept & (tokens <= tokens[:, None]) if causal else kept


@pytest.mark.parametrize(
    ("mask", "block", "causal"),
    [
        (GRID, 16, False),
        (And((GRID, Causal())), 16, True),
        (Full(), 128, False),
        (Causal(), 64, True),
        (PerHead((GRID, GRID, Full(), Full())), 16, False),
    ],
    ids=str,
)
def test_lists_say_the_mask(mask, block, causal):
    problem = replace_struct(PLAIN, mask=mask, heads_q=4, heads_kv=2)
    kept = dense_mask(problem)[0].expand(4, 32, 32)[::2]
    assert torch.equal(said(problem, block, causal), kept)


def test_sequences_have_rows_one_after_the_other():
    mask = PerBatch((Full(), Blocks(1, 16, (".F",))))
    problem = replace_struct(PLAIN, mask=mask, lengths_q=(3, 0, 20), lengths_k=(3, 0, 20))
    found = lists_of(problem, 16, False)
    assert found.listed[:, 0].tolist() == [[True, False]] * 3 + [[True, True]] * 20
    assert found.counts.shape == (23, 1)


@pytest.mark.parametrize(
    ("mask", "block", "causal"),
    [
        (Causal(), 16, False),
        (GRID, 16, True),
        (GRID, 32, False),
        (Window(left=3, right=0), 16, True),
        (PerHead((GRID, Full())), 16, False),
    ],
    ids=str,
)
def test_what_lists_cannot_say_is_not_asked(mask, block, causal):
    problem = replace_struct(PLAIN, mask=mask)
    assert lists_of(problem, block, causal) is None
    refused = refusal(CudnnNsaSelection(), Case(NAME, problem, variant={"block": block, "causal": causal}))
    assert refused.kind == "cannot"
    assert "no list of blocks" in refused.why


def test_a_listed_block_that_the_end_cuts_is_known_as_such():
    problem = replace_struct(PLAIN, lengths_q=(24,), lengths_k=(24,))
    cut = replace_struct(problem, mask=Full())
    assert lists_of(cut, 16, False).cut
    assert refusal(CudnnNsaSelection(), Case(NAME, cut, variant={"block": 16})).kind == "cannot"
    assert refusal(CudnnNsaSelection(), Case(NAME, cut, variant={"block": 16, "ends": "cut"})) is None
    assert not lists_of(replace_struct(problem, mask=Causal()), 16, True).cut
    assert not lists_of(replace_struct(problem, mask=Blocks(1, 16, ("F.",) * 24)), 16, False).cut


def test_unused_entries_name_no_block_and_lists_are_in_the_order_asked_for():
    problem = replace_struct(PLAIN, mask=Full(), lengths_q=(64,), lengths_k=(64,))
    case = Case(NAME, problem, variant={"block": 16, "order": "descending", "lists": "wide", "room": False})
    call = dry_call(case)
    assert call.index[0, 0].tolist() == [3, 2, 1, 0, UNUSED, UNUSED, UNUSED]
    assert call.index.stride(1) > 7
    assert call.room.shape == call.index.shape


def test_later_lists_blocks_of_which_a_causal_query_sees_nothing():
    problem = replace_struct(PLAIN, mask=Causal())
    counts = {
        later: dry_call(Case(NAME, problem, variant={"block": 16, "causal": True, "later": later}))
        .counts[:, 0]
        .tolist()
        for later in (False, True)
    }
    assert counts == {False: [1] * 16 + [2] * 16, True: [2] * 32}


def test_most_cases_of_a_session_can_be_asked():
    target, outcomes, options = CudnnNsaSelection(), [], set()

    @seed(1)
    @drawing(
        max_examples=150, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(cases.cases(target, cases.SMALL, 1))
    def loop(case):
        refused = refusal(target, case)
        outcomes.append(refused.kind if refused else "asked")
        options.update(case.variant)
        if refused is None:
            assert dry_call(case).index.shape[:2] == (sum(case.problem.lengths_q), case.problem.heads_kv)

    loop()
    assert outcomes.count("asked") > 75
    assert options >= {
        "block",
        "causal",
        "later",
        "order",
        "lists",
        "api",
        "longest",
        "offsets",
        "room",
        "exits",
        "ends",
    }


@needs_it
def test_seventeen_heads_in_a_group_are_refused():
    case = Case(NAME, replace_struct(PLAIN, heads_q=17), variant={"block": 16})
    assert refusal(CudnnNsaSelection(), case).kind == "refuses"
    with pytest.raises(ValueError, match="at most 16"):
        package.planned(dry_call(case), "sm_90a")


@needs_it
def test_tensors_at_other_addresses_than_multiples_of_128_are_refused():
    target, case = CudnnNsaSelection(), Case(NAME, PLAIN, Inputs(k=Storage(offset=8)), {"block": 16})
    assert refusal(target, case).kind == "refuses"
    tensors = build(case, "cpu").tensors()
    target.prepare(case, tensors)
    with pytest.raises(ValueError, match="Misaligned Tensor data"):
        target.run(case, tensors)


@needs_it
def test_a_call_without_key_offsets_has_no_kernel_to_compile():
    case = Case(NAME, PLAIN, variant={"block": 16, "keys": "none"})
    assert CudnnNsaSelection().builds(case, "sm_90a") == ()


@needs_it
def test_every_parameter_is_given_or_has_a_reason():
    settings = Settings(targets=(NAME,), device="emulator", cases=400, seed=1)
    for surface in dry_coverage(settings)[NAME]:
        assert surface.unexplained() == [], surface.surface.name
        assert surface.stale() == []


@needs_it
@pytest.mark.parametrize(
    ("changes", "variant"),
    [
        ({}, {"block": 16}),
        pytest.param(
            {"mask": Causal(), "lengths_q": (9, 20), "lengths_k": (9, 20), "heads_q": 6, "heads_kv": 2},
            {"causal": True, "api": "class", "offsets": "int64"},
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            {"mask": Full(), "dim": 128, "dim_v": 128, "dtype": "float16", "scale": 0.0},
            {"block": 32, "api": "reused", "longest": "larger", "lists": "wide"},
            marks=pytest.mark.nightly,
        ),
    ],
    ids=str,
)
def test_right_answers_on_the_emulated_gpu(changes, variant):
    case = Case(NAME, replace_struct(PLAIN, **changes), variant=variant, repeats=2)
    verdict = execute(case, CudnnNsaSelection(), lambda phase, seconds: None)
    assert verdict.outcome == "pass", verdict
