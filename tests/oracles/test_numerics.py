"""Each option of Numerics that published kernels need: a right kernel that rounds so is accepted, a wrong one not."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from covering import covering
from folding_flash import folding_flash
from torch import Tensor

from fuzz.core.case import CODED, Case, Inputs
from fuzz.tensors.arena import build
from fuzz.tensors.coded_values import fits
from oracles import accuracy, exact
from oracles.error_budget.same_precision import same_precision
from oracles.masks import Causal, Full
from oracles.numerics import FUSED, Numerics
from oracles.outputs import Outputs
from oracles.problem import Dtype, Problem
from oracles.reference.attention import reference

OPTIONS = {
    "k scaled, fp32": Numerics(scaled="k", folded="float32"),
    "k scaled, rounded": Numerics(scaled="k"),
    "k scaled in the backward pass, fp32": Numerics(rescored="k", folded="float32"),
    "k scaled and rounded in the backward pass": Numerics(rescored="k"),
    "O normalised by the LSE at the end": Numerics(renormalised="end"),
    "O normalised by the LSE so far": Numerics(renormalised="tiles"),
    "O normalised by the LSE so far, k scaled": Numerics(renormalised="tiles", scaled="k", folded="float32"),
}
STYLES = ("normal", "adversarial", "constant", "integers", *CODED)


def findings(p: Problem, inputs: Inputs, numerics: Numerics, declared: Numerics, lost: int = 0) -> set[str]:
    """Tensors that either oracle complains about, judged under `declared`."""
    x = build(Case("any", p, inputs), "cpu").tensors()
    got = folding_flash(p, numerics, x.q, x.k, x.v, x.do, lost)
    right = reference(p, x.q, x.k, x.v, do=x.do)
    same = same_precision(p, x.q, x.k, x.v, do=x.do, numerics=declared)
    found = list(accuracy.judge(p, got, right, same).findings)
    if inputs.distribution in CODED:
        found += exact.judge(p, x.q, x.k, x.v, got, do=x.do, numerics=declared)
    return {f"{f.oracle} {f.tensor}" for f in found}


def problem(dtype: Dtype, style: Any, len_k: int = 128) -> Problem:
    """Keys that a coded style can spell, half of them hidden from half of the rows."""
    p = Problem((96,), (len_k,), 1, 1, 32, 16, dtype, mask=Causal("bottom_right"), scale=0.25)
    assert style not in CODED or fits(p)
    return p


@pytest.mark.parametrize(("name", "dtype"), covering(list(OPTIONS), ["float16", "bfloat16", "float32"], strength=1))
def test_a_right_kernel_that_rounds_as_it_declares_is_accepted(name: str, dtype: Dtype) -> None:
    numerics = OPTIONS[name]
    for style in STYLES:
        for seed in (2, 3):
            assert findings(problem(dtype, style), Inputs(seed, style), numerics, numerics) == set(), (style, seed)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_wrong_kernel_that_rounds_as_it_declares_is_caught(name: str, dtype: Dtype) -> None:
    numerics = OPTIONS[name]
    for style in ("normal", "integers"):
        found = findings(problem(dtype, style), Inputs(2, style), numerics, numerics, lost=8)
        assert {"accuracy o", "accuracy dv"} <= found, style


STILL_EXACT = (
    "k scaled, fp32",
    "k scaled in the backward pass, fp32",
    "O normalised by the LSE at the end",
    "O normalised by the LSE so far",
)


@pytest.mark.parametrize("name", STILL_EXACT)
def test_one_key_less_is_still_seen_by_exact_inputs(name: str) -> None:
    numerics = OPTIONS[name]
    for dtype in ("float16", "bfloat16"):
        found = findings(problem(dtype, "one_hot"), Inputs(3, "one_hot"), numerics, numerics, lost=8)
        assert "exact o" in found


def test_no_certificate_is_given_for_what_a_folded_k_breaks() -> None:
    p = problem("bfloat16", "one_hot")
    x = build(Case("any", p, Inputs(3, "one_hot")), "cpu").tensors()
    share = {
        name: exact.certify(p, x.q, x.k, x.v, do=x.do, numerics=numerics).share for name, numerics in OPTIONS.items()
    }
    assert share["k scaled, rounded"]["o"] < 0.5  # only where no rounding of k can make another key the first
    assert share["k scaled, fp32"]["o"] > 0.9
    for name in OPTIONS:
        if OPTIONS[name].folds_k:
            assert share[name]["dq"] == share[name]["dk"] == share[name]["dv"] == 0, name
    assert share["O normalised by the LSE so far"]["dv"] > 0.9


def test_undeclared_they_are_alarms() -> None:
    """Else the options would be of no use."""
    p = Problem((96,), (512,), 1, 1, 32, 16, "float16", mask=Full(), scale=0.25)
    assert findings(p, Inputs(3, "large"), OPTIONS["k scaled and rounded in the backward pass"], FUSED)
    assert "exact o" in findings(p, Inputs(4, "index_values"), OPTIONS["O normalised by the LSE so far"], FUSED)
    p = problem("float16", "one_hot")
    assert "exact dv" in findings(p, Inputs(3, "one_hot"), OPTIONS["k scaled in the backward pass, fp32"], FUSED)


VALUES: dict[str, tuple[str, ...]] = {
    "scores": ("input",),
    "scaled": ("q", "both", "k"),
    "rescored": ("k",),
    "folded": ("float32",),
    "probs": ("float32",),
    "dscores": ("float32",),
    "weights": ("input",),
    "dscaled": ("dscores",),
    "delta": ("float32",),
    "heads": ("input",),
    "sums": ("input",),
    "renormalised": ("end", "tiles"),
}
SINGLE: list[dict[str, Any]] = [{name: value} for name, values in VALUES.items() for value in values]
PAIRS = [one | other for one, other in combinations(SINGLE, 2) if not one.keys() & other.keys()]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_half_that_is_missing_is_caught_under_any_two_declarations(dtype: Dtype) -> None:
    """A budget is that of one rounding after another: no two of them make room for an answer that is not there."""
    p = Problem((64,), (64,), 2, 1, 16, 16, dtype, scale=0.25)
    x = build(Case("any", p, Inputs(1, "normal")), "cpu").tensors()
    right = reference(p, x.q, x.k, x.v, do=x.do)
    exact_ones = Outputs(**{name: getattr(right, name).to(p.torch_dtype) for name in ("o", "dq", "dk", "dv")}, lse=None)
    missing = {name: _without_half(getattr(exact_ones, name)) for name in ("o", "dq", "dk", "dv")}
    for options in (*SINGLE, *PAIRS):
        same = same_precision(p, x.q, x.k, x.v, do=x.do, numerics=Numerics(**options, tile=64))
        assert not accuracy.judge(p, exact_ones, right, same).findings, options
        for name, changed in missing.items():
            found = accuracy.judge(p, replace(exact_ones, **{name: changed}), right, same).findings
            assert {f.tensor for f in found} == {name}, (options, name)


def _without_half(x: Tensor) -> Tensor:
    """x whose first half of rows is 0."""
    x = x.clone()
    x[..., : x.shape[-2] // 2, :] = 0
    return x
