"""The reference: proven by gradcheck, by torch's own attention in fp64, by finite differences, and by being cut up."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import warm_start

from oracles.masks import And, Causal, Documents, Intervals, Mask, Not, PerBatch, PerHead, Prefix, Tokens, Window
from oracles.problem import Bias, Problem, dense_mask, shapes
from oracles.reference.attention import Attention, reference

SMALL = {
    "plain": {},
    "causal": {"mask": Causal()},
    "softcap": {"softcap": 1.5},
    "gqa": {"heads_q": 4, "heads_kv": 2},
    "mqa": {"heads_q": 3, "heads_kv": 1, "mask": Causal("bottom_right")},
    "rows without keys": {
        "mask": Window(left=0, right=0, align="bottom_right"),
        "lengths_q": (5, 5),
        "lengths_k": (2, 2),
    },
    "ragged": {"lengths_q": (3, 0, 5), "lengths_k": (4, 2, 1), "mask": Causal("bottom_right")},
    "packed": {"lengths_q": (3, 0, 5), "lengths_k": (4, 2, 1), "layout": "packed", "heads_q": 2, "heads_kv": 1},
    "per head and batch": {"mask": PerHead((Causal(), PerBatch((Prefix(2), Not(Causal())))))},
    "negative scale": {"scale": -0.7},
    "bias": {"bias": Bias(batch=True, heads=True)},
    "bias of one row": {"bias": Bias(rows=False), "mask": Causal(), "softcap": 2.0},
    "bias of one column": {"bias": Bias(heads=True, cols=False), "lengths_q": (3, 5), "lengths_k": (4, 2)},
    "bias packed": {"bias": Bias(batch=True), "lengths_q": (3, 5), "lengths_k": (4, 2), "layout": "packed"},
}


def make(seed: int = 0, **options) -> tuple[Problem, dict[str, torch.Tensor]]:
    """A problem and its fp64 inputs."""
    given = {
        "lengths_q": (4, 4),
        "lengths_k": (5, 5),
        "heads_q": 2,
        "heads_kv": 2,
        "dim": 3,
        "dim_v": 2,
        "dtype": "float32",
    }
    problem = Problem(**(given | options))
    generator = torch.Generator().manual_seed(seed)
    names = ("q", "k", "v", "do") + (("bias",) if problem.bias else ())
    return problem, {n: torch.randn(shapes(problem)[n], generator=generator, dtype=torch.float64) for n in names}


@pytest.mark.parametrize("chunk_bytes", [None, pytest.param(1, marks=pytest.mark.nightly)], ids=["whole", "cut"])
@pytest.mark.parametrize("name", SMALL)
def test_gradcheck(name: str, chunk_bytes: int | None) -> None:
    problem, t = make(**SMALL[name])
    leaves = [t[n].requires_grad_() for n in ("q", "k", "v")] + [t["bias"].requires_grad_() if "bias" in t else None]
    options = {"chunk_bytes": chunk_bytes}
    assert torch.autograd.gradcheck(lambda *x: Attention.apply(problem, options, *x), leaves)


@pytest.mark.parametrize("name", SMALL)
def test_cut_up_is_the_same(name: str) -> None:
    problem, t = make(**SMALL[name])
    whole, cut = reference(problem, **t), reference(problem, **t, chunk_bytes=1)
    assert [n for n, _ in whole.items()] == [n for n, _ in cut.items()]
    for (name, x), (_, y) in zip(whole.items(), cut.items(), strict=True):
        assert x.shape == shapes(problem)[name] and x.dtype == torch.float64
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-13, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize(
    "mask", [Causal(), Documents((2, 3)), And((Causal("bottom_right"), Window(left=3))), Prefix(3)]
)
def test_agrees_with_torch_in_fp64(mask: Mask) -> None:
    problem, t = make(lengths_q=(7, 7), lengths_k=(9, 9), heads_q=4, heads_kv=2, mask=mask, bias=Bias(heads=True))
    leaves = {n: t[n].clone().requires_grad_() for n in ("q", "k", "v", "bias")}
    added = leaves["bias"].masked_fill(~dense_mask(problem), -torch.inf)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        o = torch.nn.functional.scaled_dot_product_attention(*list(leaves.values())[:3], added, enable_gqa=True)
    grads = torch.autograd.grad(o, list(leaves.values()), t["do"])
    found = reference(problem, **t)
    for got, want in zip((found.o, found.dq, found.dk, found.dv, found.dbias), (o, *grads), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)


def test_lse_is_the_derivative_free_log_sum() -> None:
    problem, t = make(softcap=2.0)
    scores = 2.0 * torch.tanh(t["q"] @ t["k"].mT * 3**-0.5 / 2.0)
    torch.testing.assert_close(reference(problem, **t).lse, scores.logsumexp(-1))


def test_finite_differences_of_every_input() -> None:
    problem, t = make(heads_q=4, heads_kv=2, mask=Causal(), softcap=1.0, bias=Bias())
    found, step = reference(problem, **t), 1e-6
    for name in ("q", "k", "v", "bias"):
        way = torch.randn(t[name].shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        moved = [reference(problem, **(t | {name: t[name] + sign * step * way, "do": None})).o for sign in (1, -1)]
        slope = ((moved[0] - moved[1]) / (2 * step) * t["do"]).sum()
        torch.testing.assert_close(slope, (getattr(found, f"d{name}") * way).sum(), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_rows_without_keys_are_zero(layout: str) -> None:
    mask = Tokens(("00000", "01000", "00000", "11111"))
    problem, t = make(mask=mask, layout=layout)
    found = reference(problem, **t)
    assert found.lse is not None and found.dq is not None
    o, dq, lse = found.o, found.dq, found.lse
    if layout == "packed":
        o, dq, lse = (x.unflatten(0, (2, 4)).transpose(1, 2) for x in (o, dq, lse.T))
    for row in (0, 2):
        assert (o[:, :, row] == 0).all() and (dq[:, :, row] == 0).all() and (lse[:, :, row] == -torch.inf).all()
    assert lse[:, :, 1].isfinite().all() and all(x.isfinite().all() for n, x in found.items() if n != "lse")


@pytest.mark.parametrize("chunk_bytes", [None, 1], ids=["whole", "cut"])
def test_padding_does_not_leak(chunk_bytes: int | None) -> None:
    problem, t = make(lengths_q=(3, 5), lengths_k=(6, 2), mask=Causal("bottom_right"), bias=Bias(batch=True))
    clean = reference(problem, **t, chunk_bytes=chunk_bytes)
    for b in range(2):
        for name in ("q", "do"):
            t[name][b, :, problem.lengths_q[b] :] = torch.nan
        for name in ("k", "v"):
            t[name][b, :, problem.lengths_k[b] :] = torch.nan
        t["bias"][b, :, problem.lengths_q[b] :] = torch.nan
        t["bias"][b, :, :, problem.lengths_k[b] :] = torch.nan
    spoiled = reference(problem, **t, chunk_bytes=chunk_bytes)
    for (name, x), (_, y) in zip(clean.items(), spoiled.items(), strict=True):
        assert torch.equal(x, y), name
    assert (spoiled.o[0, :, 3:] == 0).all() and (spoiled.dk[1, :, 2:] == 0).all() and (spoiled.dq[0, :, 3:] == 0).all()
    assert (spoiled.lse[0, :, 3:] == -torch.inf).all()


def test_masked_infinite_scores_are_ignored() -> None:
    problem, t = make(mask=Causal(), bias=Bias())
    t["bias"][..., 1, 0] = -torch.inf
    found = reference(problem, **t)
    assert all(x.isfinite().all() for _, x in found.items()) and (found.dbias[..., 1, 0] == 0).all()


def test_lengths_of_zero() -> None:
    problem, t = make(lengths_q=(4, 4), lengths_k=(0, 0))
    found = reference(problem, **t)
    assert (found.o == 0).all() and (found.lse == -torch.inf).all() and (found.dq == 0).all() and found.dk.numel() == 0
    problem, t = make(lengths_q=(0,), lengths_k=(3,), layout="packed")
    assert (reference(problem, **t).dv == 0).all()


PRECISION = """
import os, sys, torch
from oracles.reference.attention import no_tf32
def state():
    try:
        old = torch.get_float32_matmul_precision()
    except RuntimeError:
        old = "mixed"
    return old, torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision
def check(switch):
    exec(switch)
    before, a, b = state(), torch.randn(64, 64), torch.randn(64, 64)
    with no_tf32():
        assert state()[0] == "highest" and set(state()[1:]) <= {"ieee", "none"}, state()
        assert (a @ b - (a.double() @ b.double())).abs().max() < 1e-4
    assert state() == before, (before, state())
torch.set_num_threads(1)
for switch in sys.argv[1:]:  # each in a process of its own, which need not import torch again
    child = os.fork()
    if child == 0:
        check(switch)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, switch
"""
SWITCHES = [
    "",
    "torch.set_float32_matmul_precision('medium')",
    "torch.backends.cuda.matmul.allow_tf32 = True",
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
    "torch.backends.mkldnn.matmul.fp32_precision = 'bf16'",
]


def test_fp32_ignores_and_keeps_the_programs_precision() -> None:
    root = Path(__file__).resolve().parents[3]
    run = warm_start.run(["-c", PRECISION, *SWITCHES], cwd=root)
    assert run.returncode == 0, run.stderr


def test_fp32_on_request() -> None:
    problem, t = make(lengths_q=(33,), lengths_k=(65,), dim=16, dim_v=16)
    found = reference(problem, **t, precision=torch.float32)
    assert found.o.dtype == torch.float32
    torch.testing.assert_close(found.dq.double(), reference(problem, **t).dq, rtol=1e-4, atol=1e-5)


def test_intervals_and_strided_inputs() -> None:
    problem, t = make(mask=Intervals((((0, 2),), ((1, 3), (4, 5)), (), ((0, 5),))))
    strided = {n: x.transpose(-1, -2).contiguous().transpose(-1, -2) for n, x in t.items()}
    for (_, x), (_, y) in zip(reference(problem, **t).items(), reference(problem, **strided).items(), strict=True):
        torch.testing.assert_close(x, y)


def test_wrong_shapes_and_biases_are_named() -> None:
    problem, t = make()
    with pytest.raises(ValueError, match="k: needs shape"):
        reference(problem, t["q"], t["k"][:, :1], t["v"])
    with pytest.raises(ValueError, match="bias: the problem has no bias"):
        reference(problem, **t, bias=torch.zeros(1, 1, 4, 5))


MEMORY = """
import resource, sys, torch
torch.set_num_threads(1)
from oracles.masks import Causal
from oracles.problem import Problem, shapes
from oracles.reference.attention import reference
n = int(sys.argv[1])
p = Problem(lengths_q=(n,), lengths_k=(n,), heads_q=1, heads_kv=1, dim=64, dim_v=64, dtype="bfloat16", mask=Causal())
g = torch.Generator().manual_seed(0)
t = {name: torch.randn(shapes(p)[name], generator=g).bfloat16() for name in ("q", "k", "v", "do")}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = reference(p, **t)
outputs = sum(x.numel() * x.element_size() for _, x in found.items())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before * 1024 - outputs)
"""


def _peak_above_inputs_and_outputs(length: int) -> int:
    root = Path(__file__).resolve().parents[3]
    run = warm_start.run(["-c", MEMORY, str(length)], cwd=root, timeout=3600)
    assert run.returncode == 0, run.stderr
    return int(run.stdout)


def test_memory_of_8192_tokens_is_far_below_its_scores() -> None:
    assert (
        _peak_above_inputs_and_outputs(8192) < 512 << 20
    )  # the scores alone take 512 MiB in fp64, the run 7 times that


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_memory_of_65536_tokens_stays_under_2_gib() -> None:
    assert _peak_above_inputs_and_outputs(65536) < 2 << 30
