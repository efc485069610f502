"""One problem said in every way that scaled_dot_product_attention has: the predicate stays one."""

from __future__ import annotations

import itertools

import pytest
import torch
from msgspec.structs import replace

from fuzz.core.case import Case, Inputs, Storage
from fuzz.core.refusal import refusal
from fuzz.core.surface import kind
from fuzz.judging.judge import execute
from fuzz.script import write_script
from fuzz.targets.mask_tensors import AXES, SAID, SHAPES, mask_arguments, rank, says, shaped
from fuzz.targets.registry import load
from oracles.masks import Causal, Full, PerHead, Prefix
from oracles.problem import Bias, Problem, dense_mask

PLAIN = Problem((9, 9), (7, 7), 2, 2, 8, 8, "float32")
CPU = torch.device("cpu")
MASKS = (Full(), Causal(), Prefix(3), PerHead((Prefix(3), Causal())))


@pytest.mark.parametrize(("mask", "how"), list(itertools.product(MASKS, SHAPES)), ids=str)
@pytest.mark.parametrize("said", [one for one in SAID if one != "auto"])
def test_every_way_says_the_same_mask(mask, how, said):
    problem = replace(PLAIN, mask=mask)
    if said not in says(problem):
        return
    tensor, causal = mask_arguments(problem, None, CPU, said)
    tensor = shaped(tensor, problem, how)
    whole = tensor.expand(2, 2, 9, 7)
    kept = dense_mask(problem).expand(2, 2, 9, 7)
    assert torch.equal(whole if tensor.dtype == torch.bool else whole == 0, kept)
    assert causal == (said == "both") and (not causal or mask == Causal())
    assert rank(problem, said, how) == tensor.dim()


@pytest.mark.parametrize(
    ("mask", "how", "shape", "layout"),
    [
        (Prefix(3), "narrow", (7,), "contiguous"),
        (Full(), "narrow", (), "contiguous"),
        (Causal(), "narrow", (9, 7), "contiguous"),
        (Causal(), "expanded", (2, 2, 9, 7), "expanded"),
        (Causal(), "whole", (2, 2, 9, 7), "contiguous"),
        (Causal(), "padded", (2, 2, 9, 7), "strided"),
    ],
)
def test_shapes_and_layouts_differ(mask, how, shape, layout):
    problem = replace(PLAIN, mask=mask)
    made = shaped(mask_arguments(problem, None, CPU, "bool")[0], problem, how)
    assert tuple(made.shape) == shape and layout in kind(made)


def test_a_gpu_keeps_the_last_axis_in_memory():
    problem = replace(PLAIN, mask=Full())
    mask = mask_arguments(problem, None, CPU, "bool")[0]
    for how in SHAPES:
        assert shaped(mask, problem, how, AXES[:3]).stride()[-1:] != (0,)
        assert shaped(mask, problem, how, AXES[:3]).shape[-1] == 7


def test_the_gradient_of_a_bias_comes_through_every_shape():
    problem = replace(PLAIN, bias=Bias(heads=True, rows=False))
    for how in SHAPES:
        bias = torch.zeros(1, 2, 1, 7, requires_grad=True)
        shaped(mask_arguments(problem, bias, CPU, "float")[0], problem, how).expand(2, 2, 9, 7).sum().backward()
        assert torch.equal(bias.grad, torch.full_like(bias, 2 * 9))


@pytest.mark.parametrize("target", ["torch.sdpa.math", "torch.sdpa.flash"])
@pytest.mark.parametrize(
    ("variant", "changes"),
    [
        ({"mask": "bool", "shape": "expanded"}, {"mask": Prefix(3)}),
        ({"mask": "float", "shape": "padded"}, {"mask": Causal()}),
        ({"mask": "float", "shape": "narrow"}, {"mask": Causal(), "bias": Bias(cols=False, grad=False)}),
        ({"gqa": "expanded"}, {"heads_kv": 1}),
        ({"gqa": "always", "shape": "whole"}, {"mask": Prefix(3)}),
    ],
    ids=str,
)
def test_a_way_passes_and_its_script_runs(target, variant, changes):
    case = Case(target, replace(PLAIN, **changes), variant=variant, repeats=1)
    under_test = load(target)
    verdict = execute(case, under_test, lambda phase, limit: None)
    assert verdict.outcome == "pass", verdict
    scope: dict = {"__name__": "script"}
    with pytest.raises(SystemExit) as left:
        exec(compile(write_script(case, under_test, None), "script", "exec"), scope)
    assert left.value.code == 0


def test_a_mask_that_the_problem_does_not_have_is_not_asked():
    bias = Case("torch.sdpa.math", replace(PLAIN, bias=Bias()), variant={"mask": "bool"})
    heads = Case("torch.sdpa.math", PLAIN, variant={"gqa": "expanded"})
    known = Case("torch.sdpa.math", PLAIN, variant={"shape": "round"})
    for case in (bias, heads, known):
        found = refusal(load("torch.sdpa.math"), case)
        assert found is not None and found.kind == "cannot"


@pytest.mark.parametrize(("len_q", "len_k", "kind"), [(9, 7, "refuses"), (9, 0, "cannot"), (0, 7, "cannot")])
def test_a_mask_beside_is_causal_is_refused_where_there_are_queries_and_keys(len_q, len_k, kind):
    problem = replace(PLAIN, mask=Causal(), lengths_q=(len_q,) * 2, lengths_k=(len_k,) * 2)
    refused = refusal(load("torch.sdpa.math"), Case("torch.sdpa.math", problem, variant={"mask": "both"}))
    assert refused is not None and refused.kind == kind


@pytest.mark.parametrize(("len_q", "len_k", "outcome"), [(9, 7, "pass"), (9, 0, "reject"), (0, 7, "reject")])
def test_the_gradient_of_a_mask_alone_is_not_asked_where_nothing_is_computed(len_q, len_k, outcome):
    problem = replace(PLAIN, bias=Bias(), lengths_q=(len_q,) * 2, lengths_k=(len_k,) * 2)
    case = Case("torch.sdpa.math", problem, Inputs(detached=("q", "k", "v")))
    verdict = execute(case, load("torch.sdpa.math"), lambda phase, limit: None)
    assert verdict.outcome == outcome
    assert outcome == "pass" or verdict.reason.startswith("cannot express: the gradient of attn_mask alone")


@pytest.mark.parametrize("shared", ["", "h", "s", "hs"])
def test_rows_that_are_one_have_the_stride_1_that_flash_needs(shared):
    """With order bhds, rows of a sequence lie one element apart; where they are all one row, a row's elements do."""
    case = Case("torch.sdpa.flash", PLAIN, Inputs(q=Storage("bhds", shared=shared)))
    flash = load("torch.sdpa.flash")
    verdict, found = execute(case, flash, lambda phase, limit: None), refusal(flash, case)
    assert (found is not None) == ("s" not in shared)
    assert verdict.outcome == ("reject" if found else "pass"), verdict
