"""Strategies: inside the budget and what a target declares; every feature drawn; the same cases for a seed."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from msgspec import structs

from fuzz.core.case import CODED, Case, Storage, from_json, to_json
from fuzz.core.features import FEATURES, features
from fuzz.core.refusal import refusal
from fuzz.core.support import Support
from fuzz.core.target import Target
from fuzz.generate import cases as strategies
from fuzz.generate.cases import LARGE, LENGTHS, MEDIUM, SMALL, Size
from fuzz.targets.registry import targets
from oracles.masks import KINDS, kinds
from oracles.problem import Bias, shapes


class Wide(Target):
    """A target that can express everything."""

    name = "wide"
    support = Support(layouts=("padded", "packed"), bias=True, bias_grad=True, softcap=True, lse=True)


def narrow(**limits) -> Wide:
    target = Wide()
    target.support = replace(Wide.support, **limits)
    return target


def drawn(target, size: Size = MEDIUM, count: int = 200, first: int = 0) -> list[Case]:
    found: list[Case] = []

    @seed(first)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategies.cases(target, size))
    def loop(case: Case) -> None:
        found.append(case)

    loop()
    return found


@pytest.fixture(scope="module")
def wide() -> list[Case]:
    return drawn(Wide(), MEDIUM, 600)


@pytest.mark.parametrize("size", [SMALL, MEDIUM, LARGE, Size(64, 2)], ids=["small", "medium", "large", "tiny"])
def test_no_case_is_larger_than_its_budget(size):
    for case in drawn(Wide(), size, 150):
        p = case.problem
        assert p.pairs <= max(size.pairs, p.heads_q * p.batch), p
        assert p.heads_q * p.batch <= size.rows, p
        assert max(*p.lengths_q, *p.lengths_k) <= 16_384
        largest = max(math.prod(shapes(p)[name]) for name in ("q", "k", "v"))
        assert largest <= max(size.elements, p.batch * p.heads_q * max(p.dim, p.dim_v)), p


def test_the_targets_own_limit_of_pairs_counts_too():
    assert max(case.problem.pairs for case in drawn(narrow(max_pairs=512), LARGE, 150)) <= 512


@pytest.mark.parametrize("name", targets())
def test_targets_are_hardly_ever_asked_what_they_cannot_express(name):
    """Only rules, which no strategy knows, may say no; and they must leave most of the cases."""
    target = targets()[name]
    whys = Counter(found.why for case in drawn(target, SMALL, 150) if (found := refusal(target, case)) is not None)
    assert set(whys) <= {rule.why for rule in target.rules}, whys
    assert whys.total() < 110, whys


def test_hardly_a_case_is_a_near_copy_of_another():
    """Hypothesis copies parts of what it drew wherever strategies are nested: NOTE [near-copies]."""
    cases = drawn(Wide(), SMALL, 200)[20:]  # the first ones are small on purpose
    kinds_of = {
        (c.problem.lengths_q, c.problem.lengths_k, c.problem.heads_q, c.problem.dim, c.problem.dtype) for c in cases
    }
    assert len(kinds_of) > 0.9 * len(cases)


LIMITS = {
    "dtypes": ({"dtypes": ("float16",)}, lambda p, c: p.dtype == "float16"),
    "layouts": ({"layouts": ("packed",)}, lambda p, c: p.layout == "packed"),
    "masks": ({"masks": frozenset({"causal", "or"})}, lambda p, c: kinds(p.mask) <= {"causal", "or"}),
    "no_masks": ({"masks": frozenset({"full"})}, lambda p, c: kinds(p.mask) == {"full"}),
    "ragged": ({"layouts": ("padded",), "ragged": False}, lambda p, c: not p.ragged),
    "bias": ({"bias": False}, lambda p, c: p.bias is None),
    "bias_grad": ({"bias_grad": False}, lambda p, c: not (p.bias and p.bias.grad)),
    "softcap": ({"softcap": False}, lambda p, c: not p.softcap),
    "scale": ({"scale": False}, lambda p, c: p.scale is None),
    "gqa": ({"gqa": False}, lambda p, c: p.group == 1),
    "dim": ({"dim": (16, 128, 16)}, lambda p, c: all(16 <= d <= 128 and not d % 16 for d in (p.dim, p.dim_v))),
    "dim_one": ({"dim": (72, 72, 72)}, lambda p, c: p.dim == p.dim_v == 72),
    "dim_v": ({"dim_v_differs": False}, lambda p, c: p.dim == p.dim_v),
    "zero": ({"zero_lengths": False}, lambda p, c: 0 not in (*p.lengths_q, *p.lengths_k)),
    "cross": ({"cross": False}, lambda p, c: p.lengths_q == p.lengths_k),
    "strides": (
        {"strides": False},
        lambda p, c: {msgspec.structs.replace(getattr(c.inputs, n), shared="") for n in "qkv"} == {Storage()},
    ),
    "shared": ({"shared": False}, lambda p, c: not any(getattr(c.inputs, n).shared for n in ("q", "k", "v", "do"))),
    "backward": ({"backward": False}, lambda p, c: not p.backward),
}


@pytest.mark.parametrize("name", LIMITS)
def test_what_a_target_cannot_express_is_never_drawn(name):
    limits, holds = LIMITS[name]
    target = narrow(**limits)
    for case in drawn(target, SMALL, 120):
        assert holds(case.problem, case) and refusal(target, case) is None, case


def test_every_feature_is_drawn(wide):
    """Of the table of features; 'large' needs a larger size, others a target that names them."""
    met = Counter(name for case in wide for name in features(case))
    never = [f.name for f in FEATURES if not met[f.name] and f.name not in ("large", "top_k", "bias:kv_heads")]
    rare = {f.name: met[f.name] for f in FEATURES if 0 < met[f.name] < 5}
    print(f"never drawn in {len(wide)}: {never}; under five times: {rare}")
    assert never == []


def test_large_cases_are_drawn_at_the_large_size():
    assert any("large" in features(case) for case in drawn(Wide(), LARGE, 200))


def test_every_kind_of_mask_and_of_numbers_is_drawn(wide):
    assert set().union(*(kinds(case.problem.mask) for case in wide)) == set(KINDS) - {"top_k"}
    assert {case.inputs.distribution for case in wide} == set(strategies.DISTRIBUTIONS)
    assert {case.problem.dtype for case in wide} == {"float16", "bfloat16", "float32"}


def test_a_kind_that_a_target_names_as_native_is_drawn_for_it(monkeypatch):
    monkeypatch.setattr(Wide, "native_masks", lambda self, dtype, dim: ("top_k",))
    assert any("top_k" in kinds(case.problem.mask) for case in drawn(Wide(), count=20))


def test_a_bias_that_a_target_names_as_native_is_drawn_often(monkeypatch, wide):
    native = Bias(rows=False, batch=True)

    def is_native(case):
        return case.problem.bias == structs.replace(native, dtype=case.problem.bias.dtype, grad=case.problem.bias.grad)

    monkeypatch.setattr(Wide, "native_biases", (native,))
    found = drawn(Wide(), SMALL, 400)
    biased = [case for case in found if case.problem.bias is not None]
    assert len(biased) / len(found) > 0.3 > sum(case.problem.bias is not None for case in wide) / len(wide)
    assert sum(map(is_native, biased)) > len(biased) / 3


def test_most_lengths_are_boundaries_and_some_are_not(wide):
    lengths = [n for case in wide for n in (case.problem.lengths_q[0], case.problem.lengths_k[0])]
    known = sum(n in LENGTHS for n in lengths) / len(lengths)
    assert 0.4 < known < 0.95
    assert {0, 1, 63, 64, 65, 127, 128, 129} <= set(lengths)


def test_both_sides_of_len_q_and_len_k_are_drawn(wide):
    first = [(case.problem.lengths_q[0], case.problem.lengths_k[0]) for case in wide]
    shares = [sum(compare) / len(first) for compare in zip(*((q < k, q == k, q > k) for q, k in first), strict=True)]
    assert min(shares) > 0.05, shares


def test_cases_are_varied(wide):
    assert len({case.id for case in wide}) > 0.9 * len(wide)
    assert len({case.problem.mask for case in wide}) > 80  # half of them have one of a few native masks


def test_a_seed_draws_the_same_cases():
    assert [c.id for c in drawn(Wide(), SMALL, 40, 7)] == [c.id for c in drawn(Wide(), SMALL, 40, 7)]
    assert [c.id for c in drawn(Wide(), SMALL, 40, 7)] != [c.id for c in drawn(Wide(), SMALL, 40, 8)]


def test_every_case_survives_json(wide):
    for case in wide[:200]:
        again = from_json(to_json(case))
        assert again == case and again.id == case.id


@pytest.mark.parametrize("name", ["blocksparse", "dynamic_mask", "sdpa"])
def test_inputs_with_exact_answers_have_their_keys_in_one_call(name):
    target, draw = targets()[name], random.Random(5)
    drawn = [strategies.drawer(target, SMALL, 2)(draw) for _ in range(600)]
    exact = [case for case in drawn if case.inputs.distribution in CODED]
    assert len(exact) > 20
    assert not any("keys" in case.variant for case in exact)
    assert any("keys" in case.variant for case in drawn)


def test_variants_are_drawn():
    target = Wide()
    target.variants = ({"tile": 64}, {"tile": 128, "split": True})
    found = drawn(target, SMALL, 60)
    assert {tuple(case.variant) for case in found} == {("tile",), ("tile", "split")}
