"""Hopper's backward kernel at head dim 256 whose warpgroups have a gradient each: what it is built from, what it
computes on the emulated GPU with all of its checks, what planted bugs do, and that it is the default there."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")
pytest.importorskip("llvmlite")

from backward_problems import Spec, errors, make
from backward_problems import run as run_problem
from blocksparse_runs import gradients, loaded, ptx_of
from covering import covering, daily, nightly_unless
from cutlass import Int32, cute
from transposed_backward import products_of

from fuzz.devices.emulator import Emulator
from fuzz.devices.emulator.config import ALL_CHECKS
from kernels.blocksparse.backward import mainloop_mma
from kernels.blocksparse.backward.by_gradient import dq_warps, mainloop
from kernels.blocksparse.backward.by_gradient.kernel import REGISTERS, GradientGroups
from kernels.blocksparse.backward.by_gradient.mainloop import PIECES, Barrier
from kernels.blocksparse.backward.tiling import SHARED_MEMORY, choose_tiling
from kernels.blocksparse.compile.build import build
from kernels.blocksparse.launch.backward import backward_variants
from kernels.blocksparse.lists.halves import halve_keys
from kernels.blocksparse.lists.types import Bits, BlockList, BlockLists
from kernels.blocksparse.lists.write_order import with_order
from kernels.blocksparse.planner.planner import least_blocking
from kernels.blocksparse.spec.signature import ordered
from kernels.blocksparse.spec.variant import MASKS, NO_INJECTION, OF_POSTPROCESS, OF_PREPROCESS, Injection, Variant
from kernels.mutants.blocksparse.table import MUTANTS

ARCH = "sm_90a"
SHAPE: dict[str, Any] = {"dim": 256, "tile_m": 128, "tile_n": 64, "products": "wgmma"}
SCHEDULES = ["in_order", "random", "oldest_last", "greedy"]
FINISHED = ("finished", [])


def variant(mask: str = "none") -> Variant:
    return Variant("backward", "bfloat16", 256, 128, 64, mask, products="wgmma")


def run(spec: Spec, injection: Injection = NO_INJECTION, **emulated: Any) -> Any:
    """(problem, gradients, reports). Where adds are not ordered, their order is no finding."""
    problem = make(spec)
    checks = ALL_CHECKS if spec.deterministic else ALL_CHECKS - {"unordered_adds"}
    emulator = Emulator(**{"resident_ctas": 3, "checks": checks, **emulated})
    return problem, *gradients(problem, emulator, ARCH, injection)


def check(spec: Spec, **emulated: Any) -> dict[str, torch.Tensor]:
    """The gradients, which are right, and nothing was found."""
    problem, out, reports = run(spec, **emulated)
    assert [(r.status, r.findings) for r in reports] == [FINISHED] * len(reports), "\n".join(map(str, reports))
    found = errors(problem, out)
    assert max(found.values()) <= 1, found
    return out


def of(lens_q: Any, lens_k: Any, *heads: int, **options: Any) -> Spec:
    return Spec(lens_q, lens_k, *heads, **{**SHAPE, **options})


@pytest.mark.parametrize(
    ("mask", "tile_m", "dim", "deterministic"),
    [
        nightly_unless(not case.marks and case.values[0] == "random", *case.values)
        for case in covering(
            ["full", "causal", "window", "documents", "random"],
            [64, 128],
            [136, 192, 224, 256],
            [False, True],
            strength=1,
        )
    ],
)
def test_every_kind_of_mask(mask, tile_m, dim, deterministic):
    spec = of((230,), (190,), 2, 1, mask=mask, tile_m=tile_m, dim=dim, deterministic=deterministic)
    check(spec, warp_schedule="random", seed=dim)


SPECS = {
    "packed, grouped heads": of((0, 129, 31, 200), (100, 129, 0, 63), 4, 2, mask="random", packed=True),
    "padded, split groups": of((70, 0, 130), (130, 40, 65), 4, 2, mask="causal", group_split=2),
    "split groups, float32": of((200,), (100,), 4, 1, mask="random", group_split=4, float32=True),
    "a soft cap, ordered": of((200,), (150,), 2, 1, mask="documents", softcap=1.5, deterministic=True),
    "float16, views": of((200,), (160,), 2, 1, mask="random", dim=248, dtype=torch.float16, view=True),
    "float32": of((140,), (130,), 2, 1, mask="random", float32=True),
    "heads and rows without keys": of((200,), (130,), 2, 2, mask="holes", deterministic=True),
    "one key, one query": of((1,), (1,)),
    "one query, ordered, packed": of((1, 90), (130, 70), 2, 1, deterministic=True, packed=True),
    "more blocks than the entry buffer holds": of(
        (64 * 35 + 1,), (65,), 2, 1, tile_m=64, deterministic=True, group_split=1
    ),
}


@pytest.mark.parametrize("name", daily(list(SPECS), ["one query, ordered, packed"]))
def test_gradients(name):
    check(SPECS[name])


@pytest.mark.parametrize(
    ("dim", "deterministic"),
    [(160, True), (192, False), *(nightly_unless(False, *case) for case in [(160, False), (192, True), (224, True)])],
)
def test_products_and_adds_of_dq_end_with_the_head_dim(dim, deterministic):
    """Two steps of each block: four pieces of dQ have 64 columns each, of which the fourth is not there up to 192. With
    atomic adds the second one lies in two runs there."""
    spec = of((256,), (64,), dim=dim, deterministic=deterministic, tuning=(("depth", dim),))
    problem, out, reports = run(spec)
    assert [(r.status, r.findings) for r in reports] == [FINISHED] * 3 and max(errors(problem, out).values()) <= 1
    steps, runs, backward = 4, 3 if dim <= 192 and deterministic else 4, reports[1]
    assert products_of(backward, f"m64n{dim}k16") and not products_of(backward, "m64n256k16")
    added = sum(products_of(backward, f"cp.{form}async.bulk.global.shared::cta") for form in ("", "reduce."))
    assert added == steps * runs


@pytest.mark.parametrize(
    ("tile_m", "mask", "order", "slots"),
    [
        nightly_unless(not case.marks and case.values[1] == "causal", *case.values)
        for case in covering([64, 128], ["full", "causal", "documents", "random"], SCHEDULES, [1, 3, 5], strength=1)
    ],
)
def test_ordered_adds_have_the_same_bits_in_every_schedule(tile_m, mask, order, slots):
    spec = of((200, 130), (150, 140), 2, 1, tile_m=tile_m, mask=mask, deterministic=True)
    first = check(spec)
    again = check(spec, resident_ctas=slots, warp_schedule=order, seed=slots, dispatch="permuted")
    for name, x in first.items():  # rows past a sequence's end are NaN still
        assert torch.equal(x.nan_to_num(7.0), again[name].nan_to_num(7.0)), name


@pytest.mark.parametrize(
    ("mask", "slots", "order"),
    [
        nightly_unless(not case.marks and case.values[1] == 5, *case.values)
        for case in covering(["causal", "documents", "random"], [1, 2, 3, 5], SCHEDULES, strength=1)
    ],
)
def test_a_plan_of_halved_lists_ends_with_any_number_of_resident_ctas(mask, slots, order):
    """Planned for twelve CTAs; rows are visited in the plan's order, which differs from row to row."""
    problem = make(of((330,), (250,), 2, 1, mask=mask, deterministic=True, tile_m=64, tile_n=128))
    planned = least_blocking(problem.blocks, heads_q=2, heads_kv=1, dim=256, slots=12, pairs=1).blocks
    turned = [replace(one, index=from_the_end(one)) for one in (planned.backward.partial, planned.backward.full)]
    if not isinstance(planned.mask, Bits):  # whatever the plan does, an order that no builder makes
        planned = with_order(replace(planned, backward=BlockLists(*turned), merged=False))
    halved = halve_keys(planned, 250)
    assert not halved.merged or planned.merged
    problem = replace(problem, blocks=halved)
    emulator = Emulator(resident_ctas=slots, checks=ALL_CHECKS, warp_schedule=order, seed=slots, dispatch="permuted")
    out, reports = gradients(problem, emulator, ARCH)
    assert [(r.status, r.findings) for r in reports] == [FINISHED] * len(reports), "\n".join(map(str, reports))
    assert max(errors(problem, out).values()) <= 1


def from_the_end(one: BlockList) -> torch.Tensor:
    """The index with every row reversed."""
    index = one.index.clone()
    for begin, count in zip(one.begin.flatten().tolist(), one.count.flatten().tolist(), strict=True):
        index[begin : begin + count] = index[begin : begin + count].flip(0)
    return index


@pytest.mark.parametrize("tile_m", [64, 128])
def test_both_halves_of_every_step_count_the_tiles_of_keys_that_added(tile_m):
    """Each dQ tile has two semaphores for each step of 64 queries: of both warpgroups' first pieces, and last ones."""
    problem = make(of((200, 130), (150, 140), 2, 1, mask="causal", tile_m=tile_m, deterministic=True))

    def launch(variant: Variant, values: Any) -> None:
        report = loaded(variant, ARCH)(*ordered(variant.kind, values), emulator=Emulator(resident_ctas=3))
        assert (report.status, report.findings) == FINISHED

    semaphores = run_problem(problem, launch)[1].semaphores
    lists = problem.blocks.backward
    added = torch.zeros(2, problem.blocks.m_blocks, dtype=torch.int32)
    for b in range(2):
        for one in (lists.partial, lists.full):
            for begin, count in zip(one.begin[b, 0].tolist(), one.count[b, 0].tolist(), strict=True):
                for m in one.index[begin : begin + count].tolist():
                    added[b, m] += 1
    assert semaphores.shape == (2 * (tile_m // 64), 2, 2, problem.blocks.m_blocks) and added.max() > 1
    assert torch.equal(semaphores, added[None, :, None].expand_as(semaphores))


ORDERED = of((300, 130), (300, 140), 2, 1, mask="random", deterministic=True)
# Where CTAs begin at several tiles of queries: the semaphore of the first step is what an early release leaves out, and
# who waits for that one waits for all of the row
STAGGERED = of((400,), (400,), mask="causal", deterministic=True)
CAPPED = of((200,), (130,), 2, 1, mask="causal", softcap=1.5)


def replaced_by(name: str) -> set[str]:
    """The injection points of a mutant in the backward kernel."""
    return set(MUTANTS[name].injection.backward.replacements) - {*OF_PREPROCESS, *OF_POSTPROCESS}


DAILY = ("wait_missing",)


def bugs() -> list[Any]:
    """Mutants of the backward kernel that this loop has the injection points of; all but DAILY are tried nightly. The
    lock of ranks_of_one_cta is that of a CTA with a rank of its own, as here."""
    points = set(GradientGroups.INJECTION_POINTS)
    names = [name for name in MUTANTS if replaced_by(name) and replaced_by(name) <= points]
    names.remove("ranks_of_one_cta")
    assert set(DAILY) < set(names)
    return [name if name in DAILY else pytest.param(name, marks=pytest.mark.nightly) for name in names]


@pytest.mark.parametrize("name", bugs())
def test_planted_bugs_are_seen(name):
    """By a finding, a deadlock or wrong gradients; unordered adds are a finding."""
    injection = MUTANTS[name].injection.backward
    spec = CAPPED if "softcap" in name else STAGGERED if name == "released_one_step_early" else ORDERED
    problem, out, reports = run(spec, injection, warp_schedule="random", seed=3)
    ended = all(r.status == "finished" and not r.findings for r in reports)
    assert not ended or max(errors(problem, out).values()) > 1


def _one_for_all(half) -> Int32:
    return Int32(Barrier.FULL_IN_TURN)


@cute.jit
def _release_when_read(w, half) -> None:
    cute.arch.cp_async_bulk_wait_group(0, read=True)
    if cute.arch.lane_idx() == 0:
        mainloop_mma.release(w, dq_warps.block_of(w, half), dq_warps.part_of(w, half))
    cute.arch.sync_warp()


def _of_first_half(w, half) -> Int32:
    return half // PIECES * PIECES % (w.tiling.steps * PIECES)


# bug → (what the emulated GPU says, other functions, in every module that has them)
OF_TURNS = {
    "all dQ warps wait at the same barrier": ("deadlock", {"full_in_turn": _one_for_all}),
    "a half is released when it has been read": (("race", "unordered_adds"), {"release": _release_when_read}),
    "both halves of a step have one semaphore": ("deadlock", {"part_of": _of_first_half}),
}


@pytest.mark.parametrize("bug", daily(list(OF_TURNS), list(OF_TURNS)[:1]))
def test_planted_bugs_of_turns_are_seen(bug, monkeypatch):
    kind, others = OF_TURNS[bug]
    for name, other in others.items():
        for module in (dq_warps, mainloop):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, other)

    emulator = Emulator(resident_ctas=3, checks=ALL_CHECKS, warp_schedule="random", seed=3)
    _, reports = gradients(make(STAGGERED), emulator, ARCH, anew="backward")
    said = {r.status for r in reports} | {finding.kind for r in reports for finding in r.findings}
    assert any(one.startswith(kind) for one in said), said


@cute.jit
def _drain_nothing(w) -> None:
    pass


def test_dk_and_dv_are_stored_when_dq_has_been_read_from_their_place(monkeypatch):
    """Up to head dim 192 a piece of dQ lies in K's and V's tiles: NOTE [dQ at once]."""
    monkeypatch.setattr(mainloop, "drain_dq", _drain_nothing)
    problem = make(of((64,), (64,), dim=192, tuning=(("depth", 192),)))
    _, reports = gradients(problem, Emulator(checks=ALL_CHECKS), ARCH, anew="backward")
    assert "race: write over an unordered read" in {finding.kind for finding in reports[1].findings}


def test_loads_are_bulk_copies_and_dq_is_added_by_bulk_reductions():
    ptx = ptx_of(replace(variant("bits"), deterministic=True), ARCH)
    for form in (
        *("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16", "wgmma.mma_async.sync.aligned.m64n64k16"),
        *("cp.async.bulk.tensor.4d.shared::c", "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32"),
        *("mbarrier.arrive.expect_tx", "ld.acquire.gpu", "stmatrix"),
    ):
        assert form in ptx, form
    for form in ("mma.sync", "ldmatrix", "red.relaxed.gpu.global.add", ".local"):
        assert form not in ptx, form


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("ptxas") is None, reason="needs ptxas")
@pytest.mark.parametrize(
    ("mask", "dtype", "deterministic", "softcap"),
    list(product(MASKS, ["bfloat16", "float16"], [False, True], [False, True])),
)
def test_products_run_beside_other_work_and_no_register_is_spilled(mask, dtype, deterministic, softcap, tmp_path):
    """ptxas names kernels whose wgmma it serialises: C7510 to C7514."""
    path = tmp_path / "kernel.ptx"
    tried = replace(variant(mask), dtype=dtype, deterministic=deterministic, softcap=softcap)
    path.write_text(ptx_of(tried, ARCH))
    command = ["ptxas", "-v", "-arch=sm_90a", str(path), "-o", str(tmp_path / "kernel.cubin")]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    if "Unsupported .version" in said:
        pytest.skip("this ptxas is too old for the PTX")
    assert not re.search(r"C75\d\d", said), said
    assert " 0 bytes spill stores, 0 bytes spill loads" in said, said


@pytest.mark.parametrize("tile_m", [64, 128])
def test_it_fits_an_sm(tile_m):
    tiling = choose_tiling(replace(variant(), tile_m=tile_m), ARCH)
    assert tiling.shared_bytes <= SHARED_MEMORY[90] and tiling.threads == 384
    assert sum(REGISTERS) * 128 <= 65536 and sum(REGISTERS) <= 3 * (65536 // 384 // 8 * 8)


REFUSED: list[dict[str, Any]] = [{"separate_dq": True}, {"tuning": (("stages", 2),)}]


@pytest.mark.parametrize("fields", REFUSED)
def test_other_variants_are_refused(fields):
    with pytest.raises(ValueError, match=r"^variant\.products is 'wgmma' at head dim 256"):
        choose_tiling(replace(variant(), **fields), ARCH)
    with pytest.raises(ValueError, match=r"^variant\.products is 'wgmma': the backward kernel needs"):
        choose_tiling(variant(), "sm_80")
    with pytest.raises(ValueError, match="no injection point"):
        build(variant(), ARCH, Injection("other", {"release_nothing": print}))


@pytest.mark.parametrize(("dim", "depth"), [(136, 160), (192, 192), (200, 208), (224, 224), (240, 0)])
def test_it_is_the_default_of_hopper_beyond_head_dim_128(dim, depth):
    problem = make(of((10,), (10,), dim=dim))
    variants = backward_variants(problem.operands["q"], problem.blocks, products="wgmma")
    assert [v.products for v in variants] == ["mma", "wgmma", "wgmma"]
    tiling = choose_tiling(variants[1], ARCH)
    assert tiling.by_gradient and tiling.depth == depth
