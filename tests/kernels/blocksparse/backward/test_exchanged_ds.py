"""Hopper's backward kernel whose CTAs form pairs, have the halves of a tile of keys and exchange dS: what it computes
on the emulated GPU with all of its checks, when the launcher takes it, and what planted bugs do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")
pytest.importorskip("llvmlite")

from backward_problems import Spec, errors, make
from blocksparse_runs import gradients
from covering import nightly_unless

from fuzz.devices.emulator import Emulator
from fuzz.devices.emulator.config import ALL_CHECKS
from kernels.blocksparse.backward.tiling import choose_tiling
from kernels.blocksparse.launch.backward import backward_variants
from kernels.blocksparse.lists.halves import halve_keys

ARCH = "sm_90a"
SHAPE: dict[str, Any] = {"tile_m": 128, "tile_n": 128, "products": "wgmma"}
FINISHED = ("finished", [])


def problem_of(lens_q: Any, lens_k: Any, *heads: int, dim: int = 192, **options: Any) -> Any:
    """A problem over halves of tiles of 128 keys."""
    problem = make(Spec(lens_q, lens_k, *heads, **{**SHAPE, "dim": dim, **options}))
    return replace(problem, blocks=halve_keys(problem.blocks, torch.tensor(lens_k)))


def run(problem: Any, **emulated: Any) -> Any:
    """(gradients, reports). Where adds are not ordered, their order is no finding."""
    checks = ALL_CHECKS if problem.spec.deterministic else ALL_CHECKS - {"unordered_adds"}
    return gradients(problem, Emulator(**{"resident_ctas": 4, "checks": checks, **emulated}), ARCH)


def check(problem: Any, **emulated: Any) -> dict[str, torch.Tensor]:
    """The gradients, which are right, of a kernel that exchanges dS, and nothing was found."""
    assert exchanges(problem)
    out, reports = run(problem, **emulated)
    assert [(r.status, r.findings) for r in reports] == [FINISHED] * len(reports), "\n".join(map(str, reports))
    found = errors(problem, out)
    assert max(found.values()) <= 1, found
    return out


def exchanges(problem: Any) -> bool:
    """True where the launcher's backward kernel exchanges dS."""
    spec = problem.spec
    variants = backward_variants(
        problem.operands["q"],
        problem.blocks,
        spec.softcap,
        spec.deterministic,
        spec.tuning,
        "wgmma",
        spec.float32,
        False,
    )
    main = next(v for v in variants if v.kind == "backward")
    return main.products == "wgmma" and choose_tiling(main, ARCH).exchanges


CASES = {
    "full": ((256,), (256,), {}),
    "causal, head dim 160": ((300,), (250,), {"mask": "causal", "dim": 160}),
    "window, head dim 144": ((256,), (256,), {"mask": "window", "dim": 144}),
    "documents": ((256,), (256,), {"mask": "documents", "dim": 168}),
    "no second half": ((200,), (60,), {}),
    "three halves": ((200,), (180,), {"mask": "causal"}),
    "ragged": ((256, 130, 40), (250, 60, 140), {"mask": "causal"}),
    "ragged, descending": ((130, 256), (140, 330), {"mask": "causal", "schedule": "descending"}),
    "grouped heads": ((130,), (200,), {"heads": (4, 2), "dim": 176}),
    "units with sums of their own": ((130,), (180,), {"heads": (4, 2), "group_split": 2}),
    "steps of tiles of 64 queries": ((200,), (200,), {"tile_m": 64}),
    "float32 gradients of slices": ((200,), (180,), {"float32": True, "view": True}),
    "float16": ((200,), (180,), {"dtype": torch.float16}),
}
DAILY = {"causal, head dim 160": False, "ragged": True, "units with sums of their own": False, "three halves": True}


@pytest.mark.parametrize(
    ("name", "deterministic"),
    [nightly_unless(DAILY.get(name) == ordered, name, ordered) for name in CASES for ordered in (False, True)],
)
def test_gradients_are_right_and_nothing_is_found(name, deterministic):
    lens_q, lens_k, options = CASES[name]
    heads = options.pop("heads", ()) if "heads" in (options := dict(options)) else ()
    problem = problem_of(lens_q, lens_k, *heads, deterministic=deterministic, **options)
    schedule = ["random", "oldest_last", "greedy", "in_order"][len(name) % 4]
    check(problem, warp_schedule=schedule, seed=len(name))


@pytest.mark.parametrize("schedule", ["ascending", nightly_unless(False, "descending")])
def test_ordered_gradients_have_the_same_bits_in_every_schedule(schedule):
    problem = problem_of((256,), (330,), mask="causal", deterministic=True, schedule=schedule)
    first = check(problem, warp_schedule="in_order")
    for seed, warps in enumerate(("random", "oldest_last")):
        again = check(problem, warp_schedule=warps, seed=seed, resident_ctas=2)
        assert all(torch.equal(first[name], again[name]) for name in first)
