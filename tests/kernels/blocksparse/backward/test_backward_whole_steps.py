"""Hopper's backward kernel for dK and dV alone on the emulated GPU: gradients against float64, the bits of the loop
that it stands for, long rows, offsets of 64 bits, mutants, and which variants have it."""

from __future__ import annotations

import mmap
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")
pytest.importorskip("llvmlite")

from backward_problems import Spec, errors, make
from blocksparse_runs import gradients, ptx_of
from covering import covering, daily, nightly_unless

from fuzz.devices.emulator import Emulator
from kernels.blocksparse.backward.tiling import SHARED_MEMORY, choose_tiling
from kernels.blocksparse.compile.build import build
from kernels.blocksparse.spec.injection import find_injections
from kernels.blocksparse.spec.variant import MASKS, NO_INJECTION, Injection, Variant
from kernels.mutants.blocksparse.table import MUTANTS
from kernels.mutants.nsa.table import MUTANTS as OF_NSA
from kernels.nsa.injection import find_injection

ARCH = "sm_90a"
SHAPE: dict[str, Any] = {"dim": 128, "tile_m": 128, "tile_n": 64, "products": "wgmma", "separate_dq": True}
FINISHED = ("finished", [])
GROUPS = [1, 2]


def tuning_of(groups: int) -> tuple[tuple[str, int], ...]:
    """Where it is not the default, which other tests have compiled."""
    return () if groups == 2 else (("step_groups", groups),)


def variant(groups: int, mask: str = "none", **options: Any) -> Variant:
    fields = {"products": "wgmma", "separate_dq": True, "tuning": (("step_groups", groups),), **options}
    return Variant("backward", "bfloat16", 128, 128, 64, mask, **fields)


def of(groups: int, lens_q: Any, lens_k: Any, *heads: int, **options: Any) -> Spec:
    return Spec(lens_q, lens_k, *heads, **{**SHAPE, "tuning": tuning_of(groups), **options})


def check(spec: Spec, **emulated: Any) -> dict[str, torch.Tensor]:
    """The gradients, which are right, and nothing was found."""
    problem = make(spec)
    out, reports = gradients(problem, Emulator(**{"resident_ctas": 3, **emulated}), ARCH)
    assert [(r.status, r.findings) for r in reports] == [FINISHED] * len(reports), "\n".join(map(str, reports))
    found = errors(problem, out)
    assert max(found.values()) <= 1, found
    return out


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("mask", "groups"), covering(["full", "causal", "window", "documents", "random"], GROUPS, strength=1)
)
def test_every_kind_of_mask(mask, groups):
    check(of(groups, (300,), (260,), 2, 1, mask=mask), warp_schedule="random", seed=groups)


FEATURES: dict[str, tuple[Any, ...]] = {
    "packed, grouped heads": (
        *((0, 129, 31, 300), (100, 129, 0, 63), 4, 2),
        {"mask": "random", "packed": True, "float32": True},
    ),
    "padded, split groups": ((70, 0, 130), (130, 40, 65), 4, 2, {"mask": "causal", "group_split": 2}),
    "split groups, float32": ((300,), (100,), 4, 1, {"mask": "random", "group_split": 4, "float32": True}),
    "a soft cap": ((200,), (150,), 2, 1, {"mask": "documents", "softcap": 1.5}),
    "float16, views": (
        *((200,), (260,), 2, 1),
        {"dim": 120, "mask": "random", "dtype": torch.float16, "view": True, "float32": True},
    ),
    "heads and rows without keys": ((300,), (200,), 2, 2, {"mask": "holes"}),
    "one key, fewer steps than warpgroups": ((30,), (1,), 1, 1, {}),
    "one query": ((1,), (130,), 1, 1, {}),
}


OF_DAILY = ("packed, grouped heads", "split groups, float32")


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        nightly_unless(not case.marks and case.values[0] in OF_DAILY, *case.values)
        for case in covering(list(FEATURES), GROUPS, strength=1)
    ],
)
def test_features_of_the_other_loop(name, groups):
    *sizes, options = FEATURES[name]
    check(of(groups, *sizes, **options), warp_schedule="random", seed=len(name))


@pytest.mark.parametrize("groups", daily(GROUPS, [1]))
def test_a_row_that_is_longer_than_the_entry_buffer(groups):
    """74 entries, 148 steps; the buffer holds 64 entries."""
    check(of(groups, (4700,), (64,), 2, 1, mask="random"))


def test_one_warpgroup_gives_the_bits_of_the_other_loop():
    spec = of(1, (300, 70), (300, 130), 2, 1, mask="random")
    new, old = (check(one) for one in (spec, replace(spec, tuning=(("step_groups", 0),))))
    assert all(torch.equal(new[name].nan_to_num(7), old[name].nan_to_num(7)) for name in ("dq", "dk", "dv"))


@pytest.mark.parametrize("groups", GROUPS)
def test_the_same_bits_in_every_schedule(groups):
    spec = of(groups, (300, 70), (300, 130), 2, 1, mask="random")
    ways: list[dict[str, Any]] = [
        {"resident_ctas": 1},
        {"resident_ctas": 5, "warp_schedule": "random", "seed": 1, "dispatch": "permuted"},
        {"resident_ctas": 2, "warp_schedule": "oldest_last"},
        {"resident_ctas": 3, "warp_schedule": "greedy", "dispatch": "reversed"},
    ]
    first, *others = (check(spec, **way) for way in ways)
    for name in ("dq", "dk", "dv"):
        assert all(torch.equal(first[name].nan_to_num(7), other[name].nan_to_num(7)) for other in others), name


def reserved(rows: int, dtype: torch.dtype) -> torch.Tensor:
    """(1, rows, 1, 128) whose rows are 2 ** 24 elements apart; memory is committed where it is touched."""
    size = (rows - 1 << 24) + 128
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE of Linux
    flat = torch.frombuffer(mmap.mmap(-1, size * dtype.itemsize, flags=flags), dtype=dtype)
    return flat.as_strided((1, rows, 1, 128), (0, 1 << 24, 0, 1))


@pytest.mark.parametrize("groups", daily(GROUPS, [1]))
def test_offsets_beyond_two_billion_elements(groups):
    """Rows from number 128 on are beyond 2 ** 31 elements."""
    problem = make(of(groups, (140,), (200,), mask="random", float32=True))
    far = {name: reserved(x.shape[1], x.dtype) for name, x in problem.operands.items()}
    for name, x in far.items():
        x.copy_(problem.operands[name])
    near, _ = gradients(problem, arch=ARCH)
    wide, reports = gradients(replace(problem, operands=far), arch=ARCH)
    assert [(r.status, r.findings) for r in reports] == [FINISHED] * 3
    assert all(torch.equal(near[name], wide[name]) for name in near)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("queries_released_when_scored", 1),
        ("queries_released_when_scored", 2),
        ("sums_added_before_they_are_there", 2),
    ],
)
def test_mutants_of_the_turns_are_races(name, groups):
    assert name in OF_NSA
    problem = make(of(groups, (700,), (100,), 1, 1, float32=True))
    injected = find_injection(f"nsa!{name}").attention_backward
    found, right = (gradients(problem, arch=ARCH, injection=one)[1] for one in (injected, NO_INJECTION))
    assert any(finding.kind.startswith("race") for report in found for finding in report.findings)
    assert not any(report.findings for report in right)


@pytest.mark.nightly
def test_sums_in_stages_that_a_warpgroup_still_reads_are_a_race():
    """The barrier before it is that of other loops before dK and dV take the place of K and V."""
    assert "barrier_before_reuse_missing" in MUTANTS
    injected = find_injections("blocksparse!barrier_before_reuse_missing").backward
    _, reports = gradients(make(of(2, (700,), (100,), 1, 1)), arch=ARCH, injection=injected)
    assert any(finding.kind.startswith("race") for report in reports for finding in report.findings)


@pytest.mark.parametrize(
    ("mask", "groups"),
    [
        nightly_unless(not case.marks and case.values[0] == "bits", *case.values)
        for case in covering(MASKS, GROUPS, strength=1)
    ],
)
def test_scores_stay_in_registers(mask, groups):
    """wgmma with operand A from registers; what is stored to shared memory are gradients, after the loop."""
    ptx = ptx_of(variant(groups, mask), ARCH)
    assert "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16" in ptx
    assert "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16" in ptx
    for form in ("mma.sync", "ldmatrix", ".local", "red.relaxed", "ld.acquire"):
        assert form not in ptx
    assert ptx.index("stmatrix") > ptx.rindex("wgmma.mma_async")


@pytest.mark.parametrize("groups", GROUPS)
def test_ctas_of_an_sm_fit_its_shared_memory(groups):
    tiling = choose_tiling(variant(groups), ARCH)
    assert tiling.threads == 128 * (1 + groups)
    assert (2 // groups) * (tiling.shared_bytes + 1024) <= SHARED_MEMORY[90] + 1024  # a CTA takes 1,024 bytes more


REFUSED: list[dict[str, Any]] = [
    {"separate_dq": False},
    {"tile_n": 128},
    {"dim_padded": 64},
    {"products": "mma"},
    {"tuning": (("step_groups", 3),)},
    {"tuning": (("stages", 3), ("step_groups", 2))},
]


@pytest.mark.parametrize("fields", REFUSED)
def test_other_variants_are_refused(fields):
    with pytest.raises(ValueError, match=r"^variant\.(tuning has step_groups|products)"):
        choose_tiling(replace(variant(1), **fields), ARCH)
    with pytest.raises(ValueError, match="no injection point"):
        build(variant(1), ARCH, Injection("other", {"release_nothing": print}))
