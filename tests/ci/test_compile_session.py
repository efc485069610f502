"""Kernels that are compiled before a session: those of its cases, each once."""

from __future__ import annotations

import importlib

import pytest

from fuzz.core.refusal import refusal
from fuzz.devices.emulator import emulated
from fuzz.session.draw import drawer_of, explore, seed_cases
from fuzz.session.plan import plan
from fuzz.session.settings import Settings
from fuzz.targets.blocksparse.devices import connect, toolchain_there
from fuzz.targets.nsa.gpu import GpuNativeSparse
from oracles.native_sparse.problem import NativeSparse

SETTINGS = Settings(targets=("nsa",), device="cuda", cases=40, seed=5)
pytestmark = pytest.mark.skipif(not toolchain_there(), reason="needs the toolchain")


@pytest.fixture
def compile_session():
    """The script as a module. It imports Triton, which other tests' processes want to interpret: not while tests are
    collected."""
    return importlib.import_module("ci.compile_session")


def test_the_cases_are_those_of_the_sessions_first_shards(compile_session):
    target, drawn = GpuNativeSparse(), []
    for shard in plan(SETTINGS)[:1]:
        explore(shard, drawer_of(target, SETTINGS), drawn.append, seed_cases(shard, target, SETTINGS))
    wanted = [case.id for case in drawn if target.runs(case) and refusal(target, case) is None]
    assert [case.id for case in compile_session.drawn_cases(SETTINGS, 1)] == wanted


@pytest.mark.nightly
@pytest.mark.compiled_triton
def test_each_kernel_of_the_cases_is_planned_once(compile_session):
    connect("emulator")
    with emulated("sm_90a"):
        launches, variants = compile_session.kernels_of(SETTINGS, 1)
    keys = [launch.compile_key for launch in launches]
    assert len(set(keys)) == len(keys) and len(set(variants)) == len(variants)
    names = {launch.kernel.__name__ for launch in launches}
    assert {"mean_kernel", "combine_kernel", "chosen_kernel", "query_gradient_kernel", "transposed_kernel"} <= names
    assert {variant.kind for variant in variants} >= {"forward", "backward", "preprocess", "postprocess"}


def test_shapes_are_those_of_the_case(compile_session):
    for case in compile_session.drawn_cases(SETTINGS, 40):
        p, tensors = case.problem, compile_session.tensors_of(case, "cpu")
        assert isinstance(p, NativeSparse)
        assert {name: tuple(x.shape) for name, x in tensors.by_name().items()} == {
            name: tuple(shape) for name, shape in p.shapes().items() if name in tensors.by_name()
        }
        assert set(p.weights) <= set(tensors.by_name())
