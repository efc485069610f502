"""The backward pass with a separate dQ on the emulated GPU: gradients against float64, the same bits in every schedule,
offsets of 64 bits, and where there is no such pass."""

from __future__ import annotations

import math
import mmap
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")
pytest.importorskip("llvmlite")

from backward_problems import Spec, errors, make
from blocksparse_runs import gradients, ptx_of
from covering import daily, nightly_unless

from fuzz.devices.emulator import Emulator
from kernels.blocksparse.compile.build import build
from kernels.blocksparse.compile.supported import fits
from kernels.blocksparse.dq_by_queries.tuning import dq_tuning
from kernels.blocksparse.launch.backward import backward_variants, may_separate_dq
from kernels.blocksparse.lists.builder import dense
from kernels.blocksparse.spec.variant import ARCHES, MASKS, NO_INJECTION, Injection, Variant
from kernels.mutants.nsa.table import MUTANTS
from kernels.nsa.injection import find_injection

ARCH = "sm_90a"
SHAPE: dict[str, Any] = {"dim": 128, "tile_m": 128, "tile_n": 64, "products": "wgmma", "separate_dq": True}
FINISHED = ("finished", [])


def variant(dim: int = 128, mask: str = "none", **options: Any) -> Variant:
    return Variant("dq", "bfloat16", dim, 128, 64, mask, products="wgmma", **options)


def of(lens_q: Any, lens_k: Any, *heads: int, **options: Any) -> Spec:
    return Spec(lens_q, lens_k, *heads, **{**SHAPE, **options})


def check(spec: Spec, **emulated: Any) -> dict[str, torch.Tensor]:
    """The gradients, which are right, and nothing was found."""
    problem = make(spec)
    out, reports = gradients(problem, Emulator(**{"resident_ctas": 3, **emulated}), ARCH)
    assert [(r.status, r.findings) for r in reports] == [FINISHED] * len(reports), "\n".join(map(str, reports))
    found = errors(problem, out)
    assert max(found.values()) <= 1, found
    return out


@pytest.mark.parametrize(
    ("mask", "dim", "tile_n"),
    [
        nightly_unless(case == ("random", 128, 64), *case)
        for case in product(["full", "causal", "window", "documents", "random"], [64, 128], [64, 128])
        if case[1:] != (64, 64)
    ],
)
def test_every_kind_of_mask(mask, dim, tile_n):
    check(of((300,), (260,), 2, 1, mask=mask, dim=dim, tile_n=tile_n))


FEATURES = {
    "packed, grouped heads": of((0, 129, 31, 300), (100, 129, 0, 63), 4, 2, mask="random", packed=True, float32=True),
    "padded, split groups": of((70, 0, 130), (130, 40, 65), 4, 2, mask="causal", group_split=2),
    "a soft cap": of((200,), (150,), 2, 1, mask="documents", softcap=1.5),
    "float16, views": of((200,), (260,), 2, 1, dim=120, mask="random", dtype=torch.float16, view=True, float32=True),
    "heads and rows without keys": of((300,), (200,), 2, 2, mask="holes"),
    "one key": of((130,), (1,), 1, 1),
}


@pytest.mark.parametrize("name", daily(list(FEATURES), ["packed, grouped heads"]))
def test_features_of_the_one_kernel_pass(name):
    check(FEATURES[name], warp_schedule="random", seed=len(name))


def test_rows_without_keys_are_zero():
    out = check(of((300,), (200,), 2, 2, mask="holes", float32=True))
    assert not out["dq"][:, :, 1].any() and not out["dq"][:, 64:128].any() and out["dq"].any()


@pytest.mark.nightly
def test_the_same_bits_in_every_schedule_and_keys_as_with_atomic_adds():
    both_multiply_a_step = (("step_groups", 0),)
    spec = of((300, 70), (520, 130), 2, 1, mask="random", deterministic=True, tuning=both_multiply_a_step)
    ways: list[dict[str, Any]] = [
        {"resident_ctas": 1},
        {"resident_ctas": 5, "warp_schedule": "random", "seed": 1, "dispatch": "permuted"},
        {"resident_ctas": 2, "warp_schedule": "oldest_last"},
        {"resident_ctas": 3, "warp_schedule": "greedy", "dispatch": "reversed"},
    ]
    first, *others = (check(spec, **way) for way in ways)
    one_kernel, _ = gradients(make(replace(spec, separate_dq=False, tuning=())), Emulator(resident_ctas=2), ARCH)
    for name in ("dq", "dk", "dv"):
        assert all(torch.equal(first[name].nan_to_num(7), other[name].nan_to_num(7)) for other in others), name
        assert name == "dq" or torch.equal(first[name].nan_to_num(7), one_kernel[name].nan_to_num(7)), name


@pytest.mark.nightly
@pytest.mark.parametrize("stages", [(2, 2, 1), (3, 3, 2), (5, 5, 1)])
def test_other_numbers_of_stages(stages):
    tuning = tuple(zip(("dq_stages_k", "dq_stages_v", "dq_tiles"), stages, strict=True))
    check(of((200,), (390,), 2, 1, mask="random", tuning=tuning), warp_schedule="random", seed=sum(stages))


def reserved(rows: int, dtype: torch.dtype) -> torch.Tensor:
    """(1, rows, 1, 128) whose rows are 2 ** 24 elements apart; memory is committed where it is touched."""
    size = (rows - 1 << 24) + 128
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE of Linux
    flat = torch.frombuffer(mmap.mmap(-1, size * dtype.itemsize, flags=flags), dtype=dtype)
    return flat.as_strided((1, rows, 1, 128), (0, 1 << 24, 0, 1))


def test_offsets_beyond_two_billion_elements():
    """Rows from number 128 on are beyond 2 ** 31 elements."""
    problem = make(of((140,), (200,), mask="random", float32=True))
    far = {name: reserved(x.shape[1], x.dtype) for name, x in problem.operands.items()}
    for name, x in far.items():
        x.copy_(problem.operands[name])
    near, _ = gradients(problem, arch=ARCH)
    wide, reports = gradients(replace(problem, operands=far), arch=ARCH)
    assert [(r.status, r.findings) for r in reports] == [FINISHED] * 3
    assert all(torch.equal(near[name], wide[name]) for name in near)


@pytest.mark.nightly
def test_keys_past_the_end_are_masked_even_where_every_score_is_very_low():
    problem = make(of((64,), (40,)))
    x, score = problem.operands, -36 * 128 * problem.scale
    x["q"].fill_(-6)
    x["k"].fill_(6)
    x["o"].copy_(x["v"].float().mean(1, keepdim=True))
    problem.lse.fill_(score + math.log(40))  # exp(0 - lse), as for a key of zeros, is beyond float32
    injected = find_injection("nsa!dq_tail_keys_not_masked").attention_backward
    without, _ = gradients(problem, arch=ARCH, injection=injected)
    right, _ = gradients(problem, arch=ARCH)
    assert not without["dq"].isfinite().all() and without["dk"].isfinite().all()
    assert right["dq"].isfinite().all() and float(right["dq"].abs().max()) < 1


@pytest.mark.parametrize("name", daily(["dq_statistics_exchanged", "dq_not_scaled"], ["dq_not_scaled"]))
def test_mutants_of_dq_leave_dk_and_dv_right(name):
    assert name in MUTANTS
    problem = make(of((200,), (150,), 2, 1, mask="random", float32=True))
    injected = find_injection(f"nsa!{name}").attention_backward
    out, reports = gradients(problem, arch=ARCH, injection=injected)
    assert [r.status for r in reports] == ["finished"] * 3
    assert {name for name, error in errors(problem, out).items() if error > 1} == {"dq"}


@pytest.mark.nightly
def test_a_stage_of_keys_that_is_released_too_early_is_found():
    assert "dq_keys_released_when_scored" in MUTANTS
    problem = make(of((200,), (700,), 1, 1, float32=True))
    injected = find_injection("nsa!dq_keys_released_when_scored").attention_backward
    found, right = (gradients(problem, arch=ARCH, injection=one)[1] for one in (injected, NO_INJECTION))
    assert any(finding.kind.startswith("race") for report in found for finding in report.findings)
    assert not any(report.findings for report in right)


@pytest.mark.parametrize("mask", daily(MASKS, ["bits"]))
def test_products_of_warpgroups_and_no_adds_in_memory(mask):
    capped = mask == "band"
    for one in (variant(mask=mask, softcap=capped), variant(64, mask, float32=True)):
        ptx = ptx_of(one, ARCH)
        assert "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16" in ptx
        for form in ("mma.sync", "ldmatrix", ".local", "red.relaxed", "ld.acquire"):
            assert form not in ptx
    ptx = ptx_of(Variant("backward", "bfloat16", 128, 128, 64, mask, products="wgmma", separate_dq=True), ARCH)
    assert "red.relaxed" not in ptx and "ld.acquire" not in ptx


@pytest.mark.parametrize("arch", ARCHES)
def test_only_hopper_has_it(arch):
    assert fits(variant(), arch) == (arch == ARCH)
    if arch != ARCH:
        with pytest.raises(ValueError, match="products"):
            build(variant(), arch)


REFUSED = [{"tile_m": 64}, {"dim_padded": 96}, {"dim_padded": 256}]


@pytest.mark.parametrize(
    "fields",
    [*REFUSED, *({"tuning": (one,)} for one in (("step", 64), ("tiles", 3), ("stages_v", 1), ("stages_k", 8)))],
)
def test_other_tiles_dims_and_tunings_are_refused(fields):
    refused = replace(variant(), **fields)
    assert not fits(refused, ARCH)
    with pytest.raises(ValueError, match=r"^variant"):
        dq_tuning(refused)
    with pytest.raises(ValueError, match="no injection point"):
        build(variant(), ARCH, Injection("other", {"keep_keys": print}))


@pytest.mark.parametrize("dim", [64, 96, 128, 192])
@pytest.mark.parametrize("tiles", [(128, 128), (64, 64), (128, 64)])
def test_where_dq_cannot_be_separate(dim, tiles):
    q = torch.zeros(1, 100, 1, dim, dtype=torch.bfloat16)
    blocks = dense((100,), (100,), tile_m=tiles[0], tile_n=tiles[1])
    there = (tiles == (128, 128) and dim in (64, 128)) or (tiles == (128, 64) and dim == 128)
    assert may_separate_dq(q, *tiles, "wgmma") == there
    assert not may_separate_dq(q, *tiles)  # of a CPU's tensor the fastest products are mma.sync's
    if there:
        kinds = [one.kind for one in backward_variants(q, blocks, products="wgmma", separate_dq=True)]
        assert kinds == ["preprocess", "dq", "backward", "postprocess"]
    else:
        with pytest.raises(ValueError, match="separate_dq: needs"):
            backward_variants(q, blocks, products="wgmma", separate_dq=True)
