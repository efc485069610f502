"""Exact inputs: they say which key leaked or is missing, and find one among 16,384 where a budget cannot."""

from __future__ import annotations

import re

import pytest
import torch
from chunked_attention import attention
from covering import covering, nightly_unless
from judge_tools import judge as run_judge
from msgspec import structs

from fuzz.core.case import CODED, Case, Inputs
from fuzz.tensors.arena import build
from fuzz.tensors.coded_values import fits
from oracles import accuracy, exact
from oracles.error_budget.same_precision import same_precision
from oracles.masks import Causal, Documents, Full, Mask, PerHead, Window
from oracles.numerics import FLASH_2, FUSED
from oracles.outputs import Outputs
from oracles.problem import Bias, Problem, dense_mask
from oracles.reference.attention import reference

LONG = 16_384


def long_problem(mask: Mask, len_k: int = LONG, dtype="bfloat16") -> Problem:
    return Problem((32,), (len_k,), 1, 1, 64, 64, dtype, mask=mask, scale=0.25)


def nothing(kept):
    return kept


def last_key_missing(kept):
    kept[:, -1] = False
    return kept


def middle_key_missing(kept):
    kept[:, 8191] = False
    return kept


def last_key_of_the_block_missing(kept):
    kept[:, 1023] = False
    return kept


def one_key_more(kept):
    return kept | torch.nn.functional.pad(kept, (1, 0))[:, :-1]


def one_key_less(kept):
    return kept & torch.nn.functional.pad(kept, (0, 1))[:, 1:]


def one_beyond_the_end(kept):
    return torch.nn.functional.pad(kept, (0, 1), value=True)


def findings(p: Problem, style: str, fault=nothing, backward=nothing, seed: int = 3):
    """Of the exact oracle, and of the accuracy oracle on the same run. With an odd seed dO holds large numbers too."""
    x = build(Case("any", p, Inputs(seed, style)), "cpu").tensors()
    got = attention(p, x.q, x.k, x.v, x.do, fault, backward)
    right = reference(p, x.q, x.k, x.v, do=x.do)
    budget = accuracy.judge(p, got, right, same_precision(p, x.q, x.k, x.v, do=x.do))
    return exact.judge(p, x.q, x.k, x.v, got, do=x.do, numerics=FUSED), budget.findings


OF_16384 = [
    nightly_unless(not case.marks and case.values[1] == "bfloat16", *case.values)
    for case in covering(sorted(CODED), ("bfloat16", "float16", "float32"), strength=1)
]


@pytest.mark.parametrize(("style", "dtype"), OF_16384)
def test_a_right_kernel_is_exact_at_16384_tokens(style, dtype):
    assert findings(long_problem(Causal("bottom_right"), dtype=dtype), style) == ([], ())
    assert findings(long_problem(Full(), dtype=dtype), style) == ([], ())


@pytest.mark.parametrize("fault", [last_key_missing, middle_key_missing])
def test_one_key_too_few_of_16384_is_found_where_the_budget_sees_nothing(fault):
    found, budget = findings(long_problem(Full()), "index_values", fault, seed=4)
    key = 8191 if fault is middle_key_missing else LONG - 1
    assert all(f.tensor == "lse" for f in budget)  # log(16384) tells it apart, for a target that gives LSE
    message = next(f.message for f in found if f.tensor == "o")
    assert f"key {key} accounts for the difference: it is missing" in message


def test_one_key_too_few_in_the_backward_alone_names_the_key():
    found, _ = findings(long_problem(Full()), "index_values", backward=middle_key_missing)
    by_tensor = {f.tensor: f for f in found}
    assert "o" not in by_tensor
    assert by_tensor["dv"].place.rows == (8191, 8192)
    assert "key 8191" in by_tensor["dq"].message


def test_one_key_too_many_at_the_masks_edge_is_a_leak_by_name():
    found, _ = findings(long_problem(Causal("bottom_right")), "one_hot", one_key_more, one_key_more)
    of_o = next(f for f in found if f.tensor == "o")
    key = int(re.search(r"key (\d+)", of_o.message)[1])
    assert key == LONG - 32 + of_o.place.rows[0] + 1 and "a leak" in of_o.message


def test_one_key_too_few_at_the_masks_edge_is_found():
    found, _ = findings(long_problem(Causal("bottom_right")), "one_hot", one_key_less, one_key_less)
    assert "a key that the row should see, which is missing" in next(f.message for f in found if f.tensor == "o")


def test_a_key_beyond_the_end_is_found_and_explained():
    found, _ = findings(long_problem(Full(), LONG - 100), "one_hot", one_beyond_the_end)
    assert "past the end" in next(f.message for f in found if f.tensor == "o")


@pytest.mark.parametrize("style", CODED)
@pytest.mark.parametrize("mask", [Full(), Causal(), Window(40, 3), Documents((10, 64)), PerHead((Causal(), Full()))])
def test_most_of_a_case_is_certified(style, mask):
    p = Problem((129, 64), (130, 97), 4, 2, 16, 16, "float16", mask=mask, scale=0.25)
    x = build(Case("any", p, Inputs(5, style)), "cpu").tensors()
    share = exact.certify(p, x.q, x.k, x.v, do=x.do, numerics=FUSED).share
    assert share["o"] > 0.6 and min(share.values()) > (0.9 if style == "one_hot" else 0.3), share


def test_a_bias_per_kv_head_is_certified_as_one_per_query_head():
    shared = Problem((9,), (20,), 6, 3, 16, 16, "float16", scale=0.25, bias=Bias(kv_heads=True))
    x = build(Case("any", shared, Inputs(5, "one_hot")), "cpu").tensors()
    assert x.bias is not None and x.bias.shape[1] == 3
    alone = structs.replace(shared, bias=Bias(heads=True))
    given = {"do": x.do, "numerics": FUSED}
    one = exact.certify(shared, x.q, x.k, x.v, bias=x.bias, **given)
    other = exact.certify(alone, x.q, x.k, x.v, bias=x.bias.repeat_interleave(2, 1), **given)
    assert one.share == other.share
    for name, right in other.want.items():
        assert torch.equal(one.want[name], right) and torch.equal(one.where[name], other.where[name])


def test_a_certificate_holds_no_element_that_rounding_could_touch():
    """Normal inputs have no two equal scores and no gap: nothing is certified but rows with one key or none."""
    p = Problem((50,), (70,), 2, 1, 16, 16, "float16", mask=Causal())
    x = build(Case("any", p, Inputs(5)), "cpu").tensors()
    found = exact.certify(p, x.q, x.k, x.v, do=x.do, numerics=FUSED)
    assert not found.where["o"][:, :, 1:].any() and not found.where["dq"][:, :, 1:].any()
    assert not found.where["dk"][:, :, 1:50].any() and not found.where["dv"][:, :, 1:50].any()


def test_a_score_that_is_not_exactly_zero_ends_the_certificate_in_float32():
    p = Problem((4,), (4,), 1, 1, 8, 8, "float32", scale=1.0)
    x = build(Case("any", p, Inputs(5, "constant")), "cpu").tensors()  # every score is 4, so all weights are 1/4
    assert exact.certify(p, x.q, x.k, x.v, do=x.do, numerics=FUSED).share["o"] == 0
    assert exact.certify(p, x.q * 0, x.k, x.v, do=x.do, numerics=FUSED).share["o"] == 1


def test_each_query_asks_for_a_key_at_an_edge_of_the_mask():
    p = Problem((64,), (64,), 1, 1, 16, 16, "float32", mask=Causal(), scale=1.0)
    x = build(Case("any", p, Inputs(5, "one_hot")), "cpu").tensors()
    scores = (x.q @ x.k.mT)[0, 0]
    kept = dense_mask(p)[0, 0]
    nearest = scores.argmax(-1)
    beside = torch.arange(64) + 1
    assert (scores.masked_fill(~kept, -torch.inf).amax(-1) == 0).all()
    assert 10 < int((nearest == beside).sum()) < 50  # hidden, and nearer than all that the row sees
    assert (scores[kept & (scores != 0)] <= -exact.GAP).all()


def test_what_cannot_spell_its_keys_gets_integers_and_still_passes():
    short = Problem((9,), (100,), 1, 1, 4, 4, "float32")
    assert not fits(short)
    assert run_judge("fake.honest", short, Inputs(1, "one_hot")).outcome == "pass"


def test_the_judge_asks_for_exactness():
    p = Problem((33,), (40,), 2, 1, 16, 16, "float32", mask=Causal(), scale=0.25)
    for style in CODED:
        assert run_judge("fake.honest", p, Inputs(2, style)).outcome == "pass"
    found = run_judge("fake.ignores_mask", p, Inputs(2, "one_hot"))
    assert any(f.oracle == "exact" and "a leak" in f.message for f in found.findings)


def of_splits(p: Problem, x, size: int) -> Outputs:
    """O as flash decoding has it: of parts of the keys, put together by their LSEs in fp32."""
    q, k, v = (t.float() for t in (x.q, x.k, x.v))
    scores = (q @ k.mT * p.scale_value).masked_fill(~dense_mask(p), -torch.inf).split(size, -1)
    lse = torch.stack([part.logsumexp(-1) for part in scores])
    parts = torch.stack([part.softmax(-1) @ of for part, of in zip(scores, v.split(size, -2), strict=True)])
    whole = (lse - lse.logsumexp(0)).exp()[..., None] * parts
    return Outputs(whole.sum(0).to(x.v.dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_keys_split_between_ctas_are_not_asked_for_what_logarithms_cannot_give(dtype):
    """A sum that cancels to 0 keeps the error of its weights; one key more or less is far beyond that."""
    p = Problem((64,), (2293,), 1, 1, 40, 40, dtype, scale=1.0)
    alarms = 0
    for seed in range(6):
        x = build(Case("any", p, Inputs(seed, "index_values")), "cpu").tensors()
        got = of_splits(p, x, 300)
        assert exact.judge(p, x.q, x.k, x.v, got, numerics=FLASH_2) == []
        alarms += len(exact.judge(p, x.q, x.k, x.v, got, numerics=FUSED))
        assert exact.certify(p, x.q, x.k, x.v, numerics=FLASH_2).share["o"] > 0.9
        wrong = attention(p, x.q, x.k, x.v, x.do, last_key_of_the_block_missing, nothing)
        assert exact.judge(p, x.q, x.k, x.v, Outputs(wrong.o), numerics=FLASH_2)
    assert alarms


@pytest.mark.parametrize("seed", [1, 3, 5])
def test_gradients_rounded_for_each_query_head_are_not_asked_to_be_exact_sums(seed):
    """As PyTorch's kernels on CUDA have them: what does not fit the dtype head by head is not certified."""
    p = Problem((60,), (48,), 4, 1, 16, 16, "bfloat16", mask=Causal(), scale=0.25)
    x = build(Case("any", p, Inputs(seed, "uniform_pow2")), "cpu").tensors()
    right = reference(p, x.q, x.k, x.v, do=x.do)
    alone = Problem((60,), (48,), 4, 4, 16, 16, "bfloat16", mask=Causal(), scale=0.25)
    k, v = (t.expand(1, 4, -1, -1) for t in (x.k, x.v))
    by_head = reference(alone, x.q, k, v, do=x.do)
    dk, dv = (t.bfloat16().sum(1, keepdim=True) for t in (by_head.dk, by_head.dv))
    got = Outputs(right.o.bfloat16(), dq=right.dq.bfloat16(), dk=dk, dv=dv)
    assert exact.judge(p, x.q, x.k, x.v, got, do=x.do, numerics=FLASH_2) == []
    assert [f.tensor for f in exact.judge(p, x.q, x.k, x.v, got, do=x.do, numerics=FUSED)]


def test_a_wrong_answer_without_any_key_is_found_and_not_explained():
    p = Problem((3,), (0,), 2, 1, 16, 16, "float16", scale=1.0)
    x = build(Case("any", p, Inputs(2, "one_hot")), "cpu").tensors()
    right = reference(p, x.q, x.k, x.v, do=x.do)
    got = Outputs(torch.full_like(right.o, torch.nan), dq=right.dq, dk=right.dk, dv=right.dv)
    (found,) = exact.judge(p, x.q, x.k, x.v, got, do=x.do, numerics=FUSED)
    assert found.tensor == "o" and found.message.endswith("it is nan, expected 0")


def test_what_stands_in_padding_is_not_asked_to_be_exact():
    p = Problem((3, 1), (4, 2), 2, 1, 16, 16, "float16", scale=1.0)
    x = build(Case("any", p, Inputs(2, "one_hot")), "cpu").tensors()
    right = reference(p, x.q, x.k, x.v, do=x.do)
    o = right.o.clone()
    o[1, :, 1:] = torch.nan
    assert exact.judge(p, x.q, x.k, x.v, Outputs(o), do=x.do, numerics=FUSED) == []
    o[1, 0, 0] = torch.nan
    (found,) = exact.judge(p, x.q, x.k, x.v, Outputs(o), do=x.do, numerics=FUSED)
    assert found.message.startswith("O is wrong: 16 elements differ")
