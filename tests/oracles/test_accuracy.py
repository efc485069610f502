"""The accuracy oracle: good kernels stay far below their budgets on hard inputs, gross faults far above."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from covering import covering
from flash_in_torch import flash

from oracles.accuracy import EXACT, FUSED, Budget, Judgement, judge, same_precision
from oracles.masks import Causal, Documents, Intervals, Mask, Not, PerHead, Prefix, Tokens, Window
from oracles.numerics import Numerics
from oracles.outputs import Outputs
from oracles.problem import Bias, Dtype, Problem, shapes
from oracles.reference.attention import reference

DTYPES: tuple[Dtype, ...] = ("bfloat16", "float16", "float32")
Tensors = dict[str, torch.Tensor]


def make(dtype: Dtype = "bfloat16", seed: int = 0, **options) -> tuple[Problem, Tensors]:
    """A problem of 2 x 4 heads and its normal inputs, rounded to the dtype."""
    given = {"lengths_q": (65, 65), "lengths_k": (97, 97), "heads_q": 4, "heads_kv": 2, "dim": 32, "dim_v": 32}
    problem = Problem(**(given | {"dtype": dtype} | options))
    generator = torch.Generator().manual_seed(seed)
    names = ("q", "k", "v", "do") + (("bias",) if problem.bias else ())
    return problem, {n: torch.randn(shapes(problem)[n], generator=generator).to(problem.torch_dtype) for n in names}


def judged(problem: Problem, t: Tensors, got: Outputs, numerics: Numerics = FUSED, **options) -> Judgement:
    """The judgement of `got` for these inputs."""
    return judge(problem, got, reference(problem, **t), same_precision(problem, **t, numerics=numerics), **options)


def rounded(problem: Problem, outputs: Outputs) -> Outputs:
    """The reference's answers as a perfect kernel would store them."""
    wide = {"lse"} | ({"dbias"} if problem.bias and problem.bias.dtype == "float32" else set())
    return Outputs(**{n: x.to(torch.float32 if n in wide else problem.torch_dtype) for n, x in outputs.items()})


# ---------------------------------------------------------------------------------------------------- good kernels


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "mask", [Causal(), Window(left=9, right=3), Not(Prefix(40)), PerHead((Causal(), Prefix(1)))], ids=str
)
def test_a_flash_kernel_stays_below_half_of_its_budget(dtype: Dtype, mask: Mask) -> None:
    problem, t = make(dtype, mask=mask)
    found = judged(problem, t, flash(problem, **t))
    assert not found.findings and found.ratio < 0.5


def _large(t: Tensors) -> None:
    t["q"] *= 16


def _huge(t: Tensors) -> None:
    t["q"] *= 100
    t["k"] *= 10


def _equal(t: Tensors) -> None:
    for x in t.values():
        x.fill_(0.3)


def _alike_values(t: Tensors) -> None:
    t["v"].fill_(1.7)


def _integers(t: Tensors) -> None:
    for x in t.values():
        x.copy_(x.float().round())


def _needle(t: Tensors) -> None:
    t["q"].copy_(8 * t["k"].repeat_interleave(2, 1)[:, :, : t["q"].shape[2]])


def _tiny(t: Tensors) -> None:
    for x in t.values():
        x.mul_(2.0**-12)


def _tiny_gradient(t: Tensors) -> None:
    t["do"] *= 2.0**-20


def _hidden_keys_lead(t: Tensors) -> None:
    t["q"] += 2
    t["k"][:, :, 60:] += 4


def _zero(t: Tensors) -> None:
    t["v"].zero_()


HARD: dict[str, Callable[[Tensors], None]] = {
    f.__name__.strip("_"): f
    for f in (_large, _huge, _equal, _alike_values, _integers, _needle, _tiny, _tiny_gradient, _hidden_keys_lead, _zero)
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", HARD)
def test_hard_inputs_do_not_alarm(name: str, dtype: Dtype) -> None:
    problem, t = make(dtype, mask=Causal())
    HARD[name](t)
    found = judged(problem, t, flash(problem, **t))
    assert not found.findings and found.ratio < 0.8, found.ratio


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "options",
    [
        {"lengths_k": (1, 1)},
        {"lengths_q": (1, 1), "lengths_k": (300, 300)},
        {"dim": 1, "dim_v": 1},
        {"dim": 256, "dim_v": 256},
        {"heads_q": 16, "heads_kv": 1},
        {"scale": 0.0},
        {"scale": 1e-4},
        {"scale": -0.5},
        {"lengths_q": (5, 65), "lengths_k": (97, 3)},
    ],
    ids=str,
)
def test_odd_shapes_and_scales_do_not_alarm(options: dict, dtype: Dtype) -> None:
    problem, t = make(dtype, mask=Causal("bottom_right"), **options)
    got = flash(problem, **t) if options.get("scale") != 0.0 else rounded(problem, reference(problem, **t))
    found = judged(problem, t, got)
    assert not found.findings and found.ratio < 0.6


@pytest.mark.parametrize("value", [0.0, 1e-22])
def test_a_softcap_that_leaves_no_slope_does_not_alarm(value: float) -> None:
    """1 - tanh^2 is 0 in fp32, and dS a difference of equal numbers: what is left of dQ is noise in the reference."""
    problem, t = make("bfloat16", dim=48, dim_v=48, lengths_q=(172, 172), lengths_k=(129, 129), scale=0.5, softcap=1.0)
    for name, x in t.items():
        x.fill_(0.5 if name == "q" else 1.0)
    right = reference(problem, **t)
    assert float(right.dq.abs().max()) < 1e-20
    got = replace(rounded(problem, right), dq=torch.full_like(right.dq, value, dtype=torch.bfloat16))
    assert not judged(problem, t, got).findings


@pytest.mark.parametrize("seed", range(20))
def test_a_lucky_run_does_not_shrink_the_budget(seed: int) -> None:
    """One row, one column: the same-precision run may be right by chance, the kernel (other tiles) need not."""
    problem, t = make("bfloat16", seed, lengths_q=(1,), lengths_k=(33,), heads_q=1, heads_kv=1, dim=1, dim_v=1)
    assert judged(problem, t, flash(problem, **t, tile=8)).ratio < 0.6


def test_roundings_that_all_fall_on_ties_do_not_alarm() -> None:
    """dS is of 257 / 256 and 255 / 256: bfloat16 loses the last bit of the first ones, all in the same direction, and
    one column of dQ takes all of it: a right kernel gives half of the true value there."""
    problem = Problem((1,), (256,), 1, 1, 128, 128, "bfloat16", scale=1.0)
    t = {n: torch.zeros(shapes(problem)[n], dtype=torch.bfloat16) for n in ("q", "k", "v", "do")}
    key = torch.arange(256)
    signs = [(1 - 2 * (key >> bit & 1)).to(torch.bfloat16) for bit in (0, 1)]
    t["v"][0, 0, :, 0], t["v"][0, 0, :, 1] = 256 * signs[0], signs[1]
    t["do"][0, 0, 0, :2] = 1
    t["k"][0, 0, :, 5] = signs[1]
    right, same = reference(problem, **t), same_precision(problem, **t)
    got = Outputs(**{n: x[0].to(torch.float32 if n == "lse" else torch.bfloat16) for n, x in same.runs.items()})
    assert right.dq[0, 0, 0, 5] == 1 and got.dq[0, 0, 0, 5] == 0.5
    assert not judge(problem, got, right, same).findings
    got.dq[0, 0, 0, 5] = 0.1
    assert judge(problem, got, right, same).findings
    got.dq[0, 0, 0, 5], got.dq[0, 0, 0, 6] = 0.5, 0.5
    assert judge(problem, got, right, same).findings


def test_the_perfect_answer_is_near_zero() -> None:
    problem, t = make(softcap=5.0, bias=Bias(heads=True), mask=Causal(), layout="packed", lengths_q=(3, 70))
    found = judged(problem, t, rounded(problem, reference(problem, **t)), numerics=EXACT)
    assert not found.findings and found.ratio < 0.3 and set(found.worst) == {"o", "lse", "dq", "dk", "dv", "dbias"}


# ---------------------------------------------------------------------------------------------------- gross faults


def _permuted(p: Problem, t: Tensors) -> Outputs:
    return flash(p, **(t | {"k": t["k"].roll(1, 2)}))


def _heads_swapped(p: Problem, t: Tensors) -> Outputs:
    return flash(p, **(t | {"q": t["q"].flip(1)}))


def _other_mask(mask: Mask) -> Callable[[Problem, Tensors], Outputs]:
    return lambda p, t: flash(_with(p, mask=mask), **t)


def _with(p: Problem, **changes) -> Problem:
    return Problem(**({name: getattr(p, name) for name in p.__struct_fields__} | changes))


def _twice(p: Problem, t: Tensors) -> Outputs:
    got = flash(p, **t)
    assert got.dq is not None
    return replace(got, dq=got.dq * 2)


def _last_tile_dropped(p: Problem, t: Tensors) -> Outputs:
    rows = ("1" * (p.len_k - 64) + "0" * 64,) * p.len_q
    return flash(_with(p, mask=Tokens(rows)), **t)


FAULTS: dict[str, tuple[Mask, Callable[[Problem, Tensors], Outputs]]] = {
    "scale dropped": (Causal(), lambda p, t: flash(p, **t, scale=1.0)),
    "K permuted": (Causal(), _permuted),
    "Q's heads swapped": (Causal(), _heads_swapped),
    "one key too many": (Causal(), _other_mask(Window(right=1))),
    "one key too few in the window": (Window(left=100, right=0), _other_mask(Window(left=99, right=0))),
    "last tile dropped": (Prefix(256), _last_tile_dropped),
    "mask inverted": (Causal(), _other_mask(Not(Causal()))),
    "dQ scaled twice": (Causal(), _twice),
}


@pytest.mark.parametrize(("name", "dtype", "gain"), covering(list(FAULTS), DTYPES, [1.0, 0.1, 0.05]))
def test_gross_faults_at_256_tokens_are_found(name: str, dtype: Dtype, gain: float) -> None:
    """Also with inputs of 0.1 and 0.05, at which fixed tolerances pass most of them."""
    mask, fault = FAULTS[name]
    problem, t = make(dtype, lengths_q=(256,), lengths_k=(256,), mask=mask, dim=64, dim_v=64)
    t = {n: (x * gain).to(x.dtype) for n, x in t.items()}
    got = fault(problem, t)
    found = judged(problem, t, got)
    assert found.findings and found.ratio > 1.5, found.ratio
    assert judged(problem, t, flash(problem, **t)).ratio < 0.6
    if name == "dQ scaled twice":
        assert [f.tensor for f in found.findings] == ["dq"]


# ------------------------------------------------------------------------------------------- exact and not finite


def _spoil(problem: Problem, t: Tensors, name: str, at: tuple, value: float) -> Judgement:
    got = rounded(problem, reference(problem, **t))
    getattr(got, name)[at] = value
    return judged(problem, t, got)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["o", "lse", "dq", "dk", "dv"])
def test_what_is_not_finite_is_found(name: str, value: float) -> None:
    problem, t = make(mask=Causal("bottom_right"))
    found = _spoil(problem, t, name, (1, 1, 40), value)
    assert [(f.tensor, f.kind) for f in found.findings] == [(name, "nan")]
    assert torch.tensor(found.ratio).isfinite() and found.worst[name].at == (1, 1, 40)
    assert found.findings[0].place.rows == (40, 41) and found.findings[0].place.head == 1


def test_rows_without_keys_are_exact() -> None:
    problem, t = make(mask=Window(left=0, right=0), lengths_k=(20, 20))
    assert not _spoil(problem, t, "o", (0, 0, 30), 0.0).findings
    for name, value in (("o", 1e-6), ("dq", 1e-6), ("lse", -1e30), ("lse", 0.0)):
        found = _spoil(problem, t, name, (0, 0, 30), value)
        assert [(f.tensor, f.kind) for f in found.findings] == [(name, "wrong")]


def test_padding_is_judged_only_when_asked() -> None:
    problem, t = make(lengths_q=(65, 30), lengths_k=(97, 5))
    got = rounded(problem, reference(problem, **t))
    assert got.dk is not None
    got.o[1, :, 30:] = torch.nan
    got.dk[1, :, 5:] = 7.0
    assert judged(problem, t, got).ratio < 0.5
    assert {f.tensor for f in judged(problem, t, got, padding=True).findings} == {"o", "dk"}


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_poisoned_padding_of_the_inputs_changes_nothing(layout: str) -> None:
    problem, t = make(lengths_q=(65, 30), lengths_k=(97, 5), layout=layout)
    before = same_precision(problem, **t)
    if layout == "padded":
        for name, lengths in (("q", problem.lengths_q), ("do", problem.lengths_q), ("k", problem.lengths_k)):
            t[name][1, :, lengths[1] :] = torch.nan
    after = same_precision(problem, **t)
    for one, other in ((before.runs, after.runs), (before.noise, after.noise)):
        for (name, x), (_, y) in zip(one.items(), other.items(), strict=True):
            assert torch.equal(x, y), name


def test_fp16_overflow_is_right_where_the_true_value_does_not_fit() -> None:
    problem, t = make("float16", lengths_q=(256, 256))
    t["do"].fill_(60000.0)
    t["v"].fill_(1.0)
    right = reference(problem, **t)
    got = rounded(problem, right)
    assert right.dv is not None and got.dv is not None and right.dv.max() > 65504 and got.dv.isinf().any()
    assert not judged(problem, t, got).findings
    got.dv[got.dv.isinf()] = -torch.inf
    assert [f.tensor for f in judged(problem, t, got).findings] == ["dv"]


def test_tensors_not_offered_are_not_judged_and_wrong_shapes_are_named() -> None:
    problem, t = make()
    got = rounded(problem, reference(problem, **t))
    assert set(judged(problem, t, Outputs(got.o)).worst) == {"o"}
    with pytest.raises(ValueError, match="o: needs shape"):
        judged(problem, t, Outputs(got.o[:1]))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_that_errs_alike_in_size_proves_no_more_than_one_element(dtype: Dtype) -> None:
    """As dK's do where there is one query: the error of one dS times Q, whatever the signs."""
    problem, t = make(dtype, lengths_q=(65,), lengths_k=(97,), dim=64, dim_v=64)
    right, same = reference(problem, **t), same_precision(problem, **t)
    got, budget = rounded(problem, right), Budget.of(problem, right, same)
    assert got.dk is not None and right.dk is not None
    sigma = next(budget.sigma[s.start : s.stop].view(s.shape) for s in budget.slots if s.name == "dk")[0, 1, 40]
    signs = torch.where(torch.arange(64) % 3 == 0, 1.0, -1.0)
    normal = torch.randn(64, generator=torch.Generator().manual_seed(1))
    for errors, wrong in ((8 * signs, False), (8 * normal / normal.square().mean().sqrt(), True)):
        dk = got.dk.float()
        dk[0, 1, 40] = (right.dk[0, 1, 40] + errors * sigma).float()
        ratios = judge(problem, replace(got, dk=dk), right, same).worst["dk"].ratios
        assert ratios["row"] > 1 if wrong else 0.75 < ratios["row"] < 0.85, ratios


# ------------------------------------------------------------------------------------------------------- the noise


@pytest.mark.parametrize("numerics", [FUSED, EXACT], ids=["fused", "exact"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_noise_predicts_the_error(dtype: Dtype, numerics: Numerics) -> None:
    """A rounding error is uniform in [-u, u] times its binade: its deviation is 0.72 of the bound taken, on average."""
    problem, t = make(dtype, lengths_q=(128, 128), lengths_k=(128, 128), mask=Causal())
    right, same = reference(problem, **t), same_precision(problem, **t, numerics=numerics)
    for name in ("o", "dq", "dk", "dv"):
        want, runs, noise = (getattr(x, name) for x in (right, same.runs, same.noise))
        z = ((runs - want) / noise)[:, :, :, 1:]
        assert 0.5 < float(z.square().mean().sqrt()) < 0.9 and float(z.abs().max()) < 5, name


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize(
    "mask", [Intervals((((0, 3),), ((1, 2), (4, 9)))), Tokens(("110", "011")), Documents((0, 4)), Window(3)], ids=str
)
def test_a_reference_with_gradients_may_follow_a_same_precision_run(mask: Mask, layout: str) -> None:
    """Masks and places that are kept from one to the other have to suit both."""
    problem, t = make(lengths_q=(23, 11), lengths_k=(17, 5), mask=mask, layout=layout)
    same = same_precision(problem, **t)
    assert judge(problem, rounded(problem, right := reference(problem, **t)), right, same).ratio < 0.5


@pytest.mark.parametrize("dtype", DTYPES)
def test_two_runs_that_are_one_are_equal(dtype: Dtype) -> None:
    """Where delta is not made of O, the gradients do not see how O was normalised."""
    problem, t = make(dtype, bias=Bias())
    runs = same_precision(problem, **t, numerics=EXACT).runs
    for name in ("dq", "dk", "dv", "dbias"):
        assert torch.equal(*getattr(runs, name)), name
    rounding = same_precision(problem, **t, numerics=replace(EXACT, delta="input")).runs
    assert dtype == "float32" or (rounding.dq is not None and not torch.equal(*rounding.dq))


def test_cut_up_noise_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, t = make("float32", lengths_q=(9, 5), lengths_k=(4, 7), softcap=3.0, bias=Bias(batch=True), mask=Causal())
    whole = same_precision(problem, **t)
    monkeypatch.setattr("oracles.error_budget.same_precision.CHUNK_BYTES", 1)
    cut = same_precision(problem, **t)
    for (name, x), (_, y) in zip(whole.runs.items(), cut.runs.items(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")
    for (name, x), (_, y) in zip(whole.noise.items(), cut.noise.items(), strict=True):
        torch.testing.assert_close(x, y, rtol=0.5, atol=1e-9, msg=lambda m, name=name: f"{name}: {m}")
