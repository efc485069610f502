"""Sessions of sdpa on the emulated GPU: few dtypes for each kernel, and yet every pair of a kernel's constants."""

from __future__ import annotations

from itertools import product

from fuzz.generate.cases import MEDIUM, drawer
from fuzz.session.draw import explore
from fuzz.session.plan import Shard
from fuzz.targets.kernel_constants import BLOCKS_D
from fuzz.targets.registry import load
from fuzz.targets.sdpa.fewer_kernels import dtype_of, with_fewer_kernels
from oracles.masks import Causal, Window
from oracles.problem import Bias, Problem

SAID = ({}, {"mask": Causal()}, {"mask": Window(3, 0)}, {"bias": Bias()})


def problem(dim: int, said: dict) -> Problem:
    return Problem((65,), (65,), 1, 1, dim, dim, "float32", **said)


def test_every_dtype_meets_every_head_dim_and_every_way_to_say_a_mask():
    found = {(block, way): dtype_of(problem(block, said)) for block, (way, said) in product(BLOCKS_D, enumerate(SAID))}
    dtypes = {"float16", "bfloat16", "float32"}
    for block in BLOCKS_D:
        assert {found[block, way] for way in range(len(SAID))} == dtypes
    for way in range(len(SAID)):
        assert {found[block, way] for block in BLOCKS_D} == dtypes


def test_the_largest_head_dim_decides():
    assert dtype_of(Problem((9,), (9,), 1, 1, 8, 100, "float32")) == dtype_of(problem(128, {}))


def test_sessions_on_the_emulated_gpu_draw_that_dtype_alone_and_those_of_the_interpreter_all():
    drawn = {}
    for device in ("host", "interpreter"):
        target, found = load("sdpa", (), device), []
        explore(Shard("sdpa", 0, 60, 7), drawer(target, MEDIUM), lambda case, found=found: found.append(case.problem))
        drawn[device] = found
    assert all(one == with_fewer_kernels(one) for one in drawn["host"])
    assert any(one != with_fewer_kernels(one) for one in drawn["interpreter"])
    assert {one.dtype for one in drawn["host"]} == {"float16", "bfloat16", "float32"}
