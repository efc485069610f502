"""torch.nn.attention.varlen where PyTorch has fewer parameters than 2.13."""

from types import SimpleNamespace

import pytest
import torch

from fuzz.core.case import Case
from fuzz.core.refusal import refusal
from fuzz.core.surface import Surface
from fuzz.targets import torch_varlen
from fuzz.targets.autograd import AutogradTarget
from fuzz.targets.torch_varlen import OPTIONS, TorchVarlen
from oracles.masks import Causal
from oracles.problem import Problem

ALIKE = Problem((65, 3), (65, 3), 2, 2, 64, 64, "bfloat16", layout="packed", mask=Causal("bottom_right"))
SHARED = Problem((65, 3), (65, 3), 4, 2, 64, 64, "bfloat16", layout="packed", mask=Causal("bottom_right"))
FORWARD = Problem((65, 3), (65, 3), 2, 2, 64, 64, "bfloat16", layout="packed", backward=False)


def of_2_10(q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False, return_aux=None): ...


def of_2_11(q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1)): ...


def of_2_12(
    q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1), enable_gqa=False,
    seqused_k=None, block_table=None, num_splits=None,
): ...  # fmt: skip


@pytest.fixture
def target_of(monkeypatch):
    """The target beside a version's varlen_attn, as if there were a GPU."""

    def of(function):
        monkeypatch.setattr(torch_varlen, "_surfaces", lambda: (Surface.of(function),))
        monkeypatch.setattr(AutogradTarget, "missing", lambda self: None)
        return TorchVarlen("cuda")

    return of


def test_what_a_version_must_have_is_named(target_of):
    assert target_of(of_2_11).missing() is target_of(of_2_12).missing() is None
    said = target_of(of_2_10).missing()
    assert said is not None and said.endswith("varlen_attn has no parameter scale, window_size")


def test_cases_ask_for_what_a_version_has(target_of):
    older = target_of(of_2_11)
    drawn = [OPTIONS.of(Case(older.name, FORWARD, variant=way)) for way in older.variants_for(FORWARD)]
    assert {(one["keys"], one["gqa"], one["splits"]) for one in drawn} == {("packed", "auto", "auto")}
    assert {one["window"] for one in drawn} == {"auto", "wide"}
    newer = target_of(of_2_12)
    drawn = [OPTIONS.of(Case(newer.name, FORWARD, variant=way)) for way in newer.variants_for(FORWARD)]
    assert {one["keys"] for one in drawn} == {"packed", "slots", "paged"}
    assert {one["gqa"] for one in drawn} == {"auto", "always"} and {one["splits"] for one in drawn} == {"auto", "one"}


@pytest.mark.parametrize(
    ("problem", "variant"),
    [(SHARED, {}), (ALIKE, {"gqa": "always"}), (ALIKE, {"splits": "one"}), (FORWARD, {"keys": "slots"})],
)
def test_what_only_a_later_version_expresses_is_refused(problem, variant, target_of):
    assert refusal(target_of(of_2_12), Case("torch.nn.attention.varlen", problem, variant=variant)) is None
    said = refusal(target_of(of_2_11), Case("torch.nn.attention.varlen", problem, variant=variant))
    assert said is not None and said.kind == "cannot" and "no parameter" in said.why


def test_a_version_is_given_no_parameter_that_it_lacks(target_of, monkeypatch):
    given = {}

    def answering(q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1)):
        given.update(scale=scale, window_size=window_size, return_aux=return_aux)
        return q, torch.zeros(q.shape[1], q.shape[0])

    target = target_of(answering)
    module = SimpleNamespace(varlen_attn=answering, AuxRequest=lambda lse: ("lse", lse))
    monkeypatch.setattr(torch_varlen, "_module", lambda: module)
    q, k, v = (torch.zeros(68, 2, 64) for _ in range(3))
    o, lse = target.forward(Case(target.name, ALIKE), SimpleNamespace(q=q, k=k, v=v))
    assert o is q and lse.shape == (2, 68)
    assert given == {"scale": ALIKE.scale, "window_size": (-1, 0), "return_aux": ("lse", True)}
