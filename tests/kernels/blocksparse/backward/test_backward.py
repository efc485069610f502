"""Gradients of the backward kernels on the emulated GPU, against float64; the order of the adds, and what planted bugs
do."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")
pytest.importorskip("llvmlite")

from backward_problems import Spec, errors, make, run
from blocksparse_runs import gradients, loaded
from covering import covering, daily, nightly_unless
from cutlass import Int32, Uint32, cute

from fuzz.devices.emulator import Emulator
from kernels.blocksparse.launch.backward import backward_launches, make_workspace
from kernels.blocksparse.launch.concurrency import has_longest_last
from kernels.blocksparse.planner.planner import least_blocking
from kernels.blocksparse.spec.signature import ordered
from kernels.blocksparse.spec.variant import Injection


def check(spec: Spec, **options: Any) -> None:
    """The gradients are right, and the emulator found nothing."""
    problem = make(spec)
    out, reports = gradients(problem, **options)
    assert [r.status for r in reports] == ["finished"] * len(reports)
    assert [f for r in reports for f in r.findings] == []
    found = errors(problem, out)
    assert max(found.values()) <= 1, found


ORDERS = ["in_order", "random", "oldest_last", "greedy"]


@pytest.mark.parametrize(
    ("mask", "slots", "order"), covering(["causal", "window", "random"], [1, 2, 3, 5, 8], ORDERS, strength=1)
)
def test_a_planned_schedule_ends_with_any_number_of_resident_ctas(mask, slots, order):
    """Planned for twelve resident CTAs, run with fewer, dispatched in another order too: the tile counter gives the
    places."""
    problem = make(Spec((330,), (450,), 2, 1, dim=32, mask=mask, deterministic=True))
    planned = least_blocking(problem.blocks, heads_q=2, heads_kv=1, slots=12)
    assert len(planned.estimates) > 2
    problem = replace(problem, blocks=planned.blocks)
    out, reports = gradients(
        problem, Emulator(resident_ctas=slots, warp_schedule=order, seed=slots, dispatch="permuted")
    )
    assert [(r.status, r.findings) for r in reports] == [("finished", [])] * 3
    found = errors(problem, out)
    assert max(found.values()) <= 1, found


MASKS = ["full", "causal", "window", "documents", "random"]


@pytest.mark.parametrize(
    ("mask", "deterministic"),
    [
        nightly_unless(not case.marks and case.values[0] == "causal", *case.values)
        for case in covering(MASKS, [False, True], strength=1)
    ],
)
def test_gradients_of_padded_sequences_of_any_length(mask, deterministic):
    check(Spec((70, 0, 130), (130, 40, 65), 2, 2, mask=mask, deterministic=deterministic, schedule="descending"))


@pytest.mark.parametrize(
    ("mask", "deterministic"),
    [
        nightly_unless(not case.marks and case.values[0] not in ("full", "documents"), *case.values)
        for case in covering(MASKS, [True, False], strength=1)
    ],
)
def test_gradients_of_packed_sequences_with_grouped_heads(mask, deterministic):
    check(Spec((0, 129, 31, 64), (100, 129, 0, 63), 4, 2, mask=mask, deterministic=deterministic, packed=True))


@pytest.mark.parametrize(("packed", "group_split", "deterministic"), covering([False, True], [1, 2, 4], [False, True]))
def test_groups_that_are_split_into_units(group_split, packed, deterministic):
    lengths = (130, 0, 65), (100, 40, 200)
    check(
        Spec(
            *lengths,
            8,
            2,
            dim=40,
            mask="random",
            packed=packed,
            deterministic=deterministic,
            group_split=group_split,
            view=True,
        )
    )


def test_a_group_that_is_split_has_the_same_bits_however_the_ctas_run():
    problem = make(Spec((200,), (330,), 4, 1, dim=32, mask="causal", group_split=4, deterministic=True))
    ways = (Emulator(resident_ctas=1), Emulator(resident_ctas=5, warp_schedule="random", seed=1, dispatch="permuted"))
    first, second = (gradients(problem, emulator)[0] for emulator in ways)
    assert all(torch.equal(first[name], second[name]) for name in ("dq", "dk", "dv"))


@pytest.mark.parametrize(
    ("tiles", "dim"),
    [
        nightly_unless(not case.marks and case.values[1] == 64, *case.values)
        for case in covering([(64, 128), (128, 64), (128, 128)], [64, 96, 128], strength=1)
    ],
)
def test_split_groups_of_other_tiles(tiles, dim):
    tile_m, tile_n = tiles
    check(
        Spec((200,), (260,), 4, 1, dim=dim, tile_m=tile_m, tile_n=tile_n, mask="causal", group_split=2), arch="sm_90a"
    )


@pytest.mark.parametrize(
    ("mask", "merged"),
    [
        nightly_unless(not case.marks and case.values[0] != "documents", *case.values)
        for case in covering(["window", "documents", "random"], [False, True], strength=1)
    ],
)
def test_rows_merged_or_partial_blocks_first(mask, merged):
    spec = Spec((400, 130), (330, 500), 4, 2, dim=32, mask=mask, deterministic=True)
    problem = make(spec)
    partial, full = problem.blocks.backward.partial.count, problem.blocks.backward.full.count
    assert problem.blocks.merged and (mask == "random" or bool(((partial > 0) & (full > 0)).any()))
    problem = replace(problem, blocks=replace(problem.blocks, merged=merged))
    out, reports = gradients(problem)
    assert [(r.status, r.findings) for r in reports] == [("finished", [])] * 3
    assert max(errors(problem, out).values()) <= 1


OF_WARPGROUPS = [
    Spec((150,), (130,), 1, 1, dim=128, tile_m=128, tile_n=128, mask="causal", deterministic=True),
    Spec((300, 70), (260, 130), 4, 2, dim=64, tile_m=128, tile_n=128, mask="random", softcap=1.5, group_split=2),
    Spec((200, 0, 130), (260, 5, 70), 2, 2, dim=128, tile_m=64, tile_n=128, mask="window", packed=True),
    Spec((200,), (260,), 2, 1, dim=56, tile_m=128, tile_n=128, mask="documents", dtype=torch.float16, view=True),
    Spec((64 * 35 + 1,), (130,), 2, 1, dim=64, tile_m=64, tile_n=128, deterministic=True, group_split=1),
    Spec((150,), (130,), 2, 1, dim=128, tile_m=128, tile_n=64, mask="causal", deterministic=True),
    Spec((140,), (130,), 2, 1, dim=120, tile_m=128, tile_n=64, mask="random", group_split=2, float32=True),
]


@pytest.mark.parametrize(
    "spec",
    [nightly_unless(spec == OF_WARPGROUPS[5], spec) for spec in OF_WARPGROUPS],
    ids=[
        *("ordered", "split, a soft cap", "packed", "float16", "more blocks than the ring holds"),
        *("64 keys, ordered", "64 keys, split"),
    ],
)
def test_products_of_warpgroups(spec):
    check(replace(spec, products="wgmma"), arch="sm_90a")


@pytest.mark.parametrize(("keys", "dim", "tile_n"), [nightly_unless(False, 520, 64, 128), (260, 128, 64)])
def test_products_of_warpgroups_have_the_same_bits_however_the_ctas_run(keys, dim, tile_n):
    shape = {"dim": dim, "tile_m": 128, "tile_n": tile_n, "mask": "causal", "deterministic": True}
    problem = make(Spec((200,), (keys,), 2, 1, products="wgmma", **shape))
    ways = (Emulator(resident_ctas=1), Emulator(resident_ctas=5, warp_schedule="random", seed=1, dispatch="permuted"))
    first, second = (gradients(problem, emulator, "sm_90a")[0] for emulator in ways)
    assert all(torch.equal(first[name], second[name]) for name in ("dq", "dk", "dv"))


@pytest.mark.parametrize(
    ("kernel", "order"),
    [
        nightly_unless(not case.marks and case.values[0] == (64, 1, 1), *case.values)
        for case in covering([(64, 5, 0), (128, 3, 0), (64, 1, 1), (128, 3, 1)], ORDERS, strength=1)
    ],
)
def test_the_semaphore_wait_warp_meets_the_warpgroups_at_every_block(kernel, order):
    """Rows of up to seven blocks of one or two steps: none of its barriers is ever a round ahead of the others; nor of
    the semaphore-release warp's, beside it."""
    tile_m, slots, releaser = kernel
    shape = {"dim": 64, "tile_m": tile_m, "tile_n": 128, "mask": "causal", "deterministic": True, "products": "wgmma"}
    problem = make(Spec((440,), (400,), 2, 1, tuning=(("releaser", releaser), ("transposed", 0)), **shape))
    out, reports = gradients(
        problem, Emulator(resident_ctas=slots, warp_schedule=order, seed=slots, dispatch="permuted"), "sm_90a"
    )
    assert [(r.status, r.findings) for r in reports] == [("finished", [])] * 3
    assert max(errors(problem, out).values()) <= 1


@pytest.mark.parametrize(("dim", "there"), [(64, "160 of 192"), nightly_unless(False, 128, "128 of 160")])
def test_a_semaphore_wait_warp_that_waits_forever_is_named(dim, there):
    """At dim 64 a semaphore-release warp is beside it, which does not wait for the semaphore."""
    shape = {"dim": dim, "tile_m": 64, "tile_n": 128, "mask": "random", "deterministic": True, "products": "wgmma"}
    shape["tuning"] = (("transposed", 0),)
    injection = Injection("lock is n block", {"lock_of": lock_is_n_block})
    _, reports = gradients(make(Spec((300,), (400,), 2, 1, **shape)), arch="sm_90a", injection=injection)
    assert [r.status for r in reports] == ["finished", "deadlock"]
    said = str(reports[-1])
    assert re.search(r"warp 8 waits for semaphores\[0, [01], 3\] = 2 to become 3", said), said
    assert f"warps 0, 1, 2, 3 wait at barrier 12, where {there} threads have arrived" in said, said


@pytest.mark.nightly
@pytest.mark.parametrize(("kernel", "deterministic"), covering([(96, 1), (128, 3)], [False, True], strength=1))
def test_dq_of_a_whole_block_at_once(kernel, deterministic):
    """Two steps of 64 queries, the last block's second one without rows; K is read once for both."""
    dim, slots = kernel
    problem = make(Spec((300, 130), (260, 140), 2, 1, dim=dim, tile_m=128, tile_n=128, deterministic=deterministic))
    out, reports = gradients(problem, Emulator(resident_ctas=slots, warp_schedule="random", seed=dim), "sm_90a")
    assert [(r.status, r.findings) for r in reports] == [("finished", [])] * 3
    assert max(errors(problem, out).values()) <= 1


@pytest.mark.parametrize("dim", daily([8, 24, 32, 40, 72, 96, 104, 128], [8, 40]))
def test_head_dims_between_the_padded_ones(dim):
    check(Spec((90,), (70,), 2, 1, dim=dim, mask="random", deterministic=True))


LARGE = [
    (dim, tile_m, arch)
    for dim, tile_m in ((136, 64), (160, 128), (192, 64), (200, 128), (256, 64), (256, 128))
    for arch in ("sm_80", "sm_90a")
]


@pytest.mark.nightly
@pytest.mark.parametrize(("dim", "tile_m", "arch"), LARGE)
def test_head_dims_above_128(dim, tile_m, arch):
    check(Spec((150,), (70,), 2, 1, dim=dim, tile_m=tile_m, mask="causal", deterministic=True), arch=arch)


@pytest.mark.parametrize(
    ("tiles", "dim", "mask"),
    [
        nightly_unless(not case.marks and case.values[0] == (64, 128), *case.values)
        for case in covering([(64, 128), (128, 64), (128, 128)], [64, 128], ["causal", "random"], strength=1)
    ],
)
def test_tiles_that_take_one_or_several_steps(tiles, dim, mask):
    tile_m, tile_n = tiles
    check(Spec((200,), (260,), 2, 2, dim=dim, tile_m=tile_m, tile_n=tile_n, mask=mask, deterministic=True))


@pytest.mark.nightly
@pytest.mark.parametrize("mask", ["full", "random"])
def test_float16(mask):
    check(Spec((130,), (150,), 2, 1, dtype=torch.float16, mask=mask))


IN_FLOAT32 = [
    Spec((70, 0, 130), (130, 40, 65), 2, 2, dim=40, mask="random", view=True),
    Spec((0, 129, 64), (100, 129, 63), 4, 2, dim=96, mask="causal", packed=True, tile_m=128),
    Spec((130, 0), (100, 70), 8, 2, group_split=2, mask="window", dtype=torch.float16, tile_n=128),
    Spec((200,), (300,), 2, 1, dim=128, tile_m=128, tile_n=128, mask="causal", products="wgmma"),
    Spec((150,), (200,), 4, 2, tile_m=128, tile_n=128, group_split=2, products="wgmma", packed=True),
]


@pytest.mark.parametrize("spec", [nightly_unless(spec in IN_FLOAT32[:1], spec) for spec in IN_FLOAT32], ids=repr)
def test_gradients_in_float32_rounded_are_those_in_16_bits(spec):
    arch = "sm_90a" if spec.products else "sm_80"
    problem = make(replace(spec, deterministic=True, float32=True))
    wide, reports = gradients(problem, arch=arch)
    assert [(r.status, r.findings) for r in reports] == [("finished", [])] * len(reports)
    assert max(errors(problem, wide).values()) <= 1
    narrow, _ = gradients(make(replace(spec, deterministic=True)), arch=arch)
    for name, x in wide.items():
        assert x.dtype == torch.float32
        assert torch.equal(x.to(spec.dtype).nan_to_num(nan=-9), narrow[name].nan_to_num(nan=-9)), name
        assert not torch.equal(x.nan_to_num(), narrow[name].float().nan_to_num()), name


def test_gradients_of_several_dtypes_are_refused():
    problem = make(Spec((64,), (64,)))
    x, dk = problem.operands, problem.operands["k"].float()
    workspace = make_workspace(x["q"], x["k"], problem.sequences, problem.blocks, deterministic=False)
    with pytest.raises(ValueError, match=r"dq, dk, dv: need torch\.bfloat16 or float32 for all"):
        backward_launches(
            x["q"], dk, x["v"], x["q"], x["k"], x["v"], x["o"], problem.lse, x["do"],
            problem.sequences, problem.blocks, workspace, scale=1.0,
        )  # fmt: skip


@pytest.mark.parametrize("packed", daily([False, True], [True]))
def test_operands_that_are_views_of_wider_tensors(packed):
    check(Spec((70, 65), (66, 80), 4, 2, dim=40, view=True, packed=packed, mask="causal"))


@pytest.mark.parametrize("deterministic", daily([False, True], [True]))
def test_a_soft_cap(deterministic):
    check(Spec((130,), (150,), 2, 1, softcap=1.5, mask="documents", deterministic=deterministic))


@pytest.mark.parametrize(
    ("arch", "dim"),
    [
        nightly_unless(not case.marks and case.values[0] == "sm_90a", *case.values)
        for case in covering(["sm_120a", "sm_90a"], [64, 128], strength=1)
    ],
)
def test_other_archs_add_four_floats_at_once_and_have_other_tilings(arch, dim):
    check(Spec((130,), (150,), 2, 2, dim=dim, tile_m=128, tile_n=128, mask="random", deterministic=True), arch=arch)


def test_heads_rows_and_columns_without_any_block():
    problem = make(Spec((200,), (200,), 4, 2, mask="holes", deterministic=True))
    out, reports = gradients(problem)
    assert [r.status for r in reports] == ["finished"] * 3
    assert max(errors(problem, out).values()) <= 1
    assert not out["dq"][:, :, 1].any() and not out["dq"][:, 64:128].any() and not out["dv"][:, 64:].any()


def test_more_blocks_than_the_ring_holds():
    check(Spec((64 * 5 + 1,), (70,), 24, 1, dim=32, deterministic=True))


@pytest.mark.parametrize(
    ("mask", "schedule"), covering(["causal", "random"], ["ascending", "descending", "permutation"], strength=1)
)
def test_ordered_adds_have_the_same_bits_however_the_ctas_run(mask, schedule):
    """And with any number of concurrent pairs, but where that says which groups are reversed: those sum in another
    order."""
    spec = Spec((200, 130), (330, 200), 4, 2, dim=32, mask=mask, schedule=schedule, deterministic=True)
    ways = [
        (Emulator(resident_ctas=1), 1),
        (Emulator(resident_ctas=3, warp_schedule="random", seed=1, dispatch="reversed"), 1),
        (Emulator(resident_ctas=7, warp_schedule="random", seed=2, dispatch="permuted"), 3),
        (Emulator(resident_ctas=100, warp_schedule="oldest_last", seed=3), 16),
    ]
    results = []
    for emulator, pairs in ways:
        problem = make(replace(spec, pairs=pairs))
        if has_longest_last(problem.blocks):
            problem = make(replace(spec, pairs=3))
        out, reports = gradients(problem, emulator)
        assert [(r.status, r.findings) for r in reports] == [("finished", [])] * 3
        results.append(out)
    assert max(errors(problem, results[0]).values()) <= 1
    for other in results[1:]:
        for name in ("dq", "dk", "dv"):
            assert torch.equal(results[0][name].nan_to_num(7), other[name].nan_to_num(7)), name


def test_atomic_adds_have_other_bits_when_the_ctas_run_in_another_order():
    spec = Spec((64,), (64 * 8,), 1, 1, dim=32)
    results = []
    for dispatch in ("in_order", "reversed"):
        emulator = Emulator(resident_ctas=1, dispatch=dispatch)
        _, workspace = run(make(spec), lambda v, values, e=emulator: loaded(v)(*ordered(v.kind, values), emulator=e))
        results.append(workspace.dq_sum)
    assert not torch.equal(*results)


@cute.jit
def lock_is_n_block(rank: Int32, n_block: Int32) -> Int32:
    return n_block


@cute.jit
def never_release(semaphore: cute.Pointer):
    pass


@cute.jit
def no_tail(keys_left: Int32) -> Uint32:
    return Uint32(0xFFFFFFFF)


@pytest.mark.parametrize(
    ("point", "bug"),
    [("lock_of", lock_is_n_block), nightly_unless(False, "release", never_release), ("clear", never_release)],
)
def test_broken_protocols_hang(point, bug):
    problem = make(Spec((200,), (200,), 1, 1, dim=32, mask="window", deterministic=True))
    _, reports = gradients(problem, Emulator(resident_ctas=2), injection=Injection(f"broken_{point}", {point: bug}))
    assert reports[-1].status == "deadlock"


def test_keys_past_the_end_are_masked_even_where_every_score_is_very_low():
    problem = make(Spec((64,), (40,), 1, 1, dim=32))
    x, score = problem.operands, -36 * 32 * problem.scale
    x["q"].fill_(-6)
    x["k"].fill_(6)
    x["o"].copy_(x["v"].float().mean(1, keepdim=True))
    problem.lse.fill_(score + math.log(40))  # exp(0 - lse), as for a key of zeros, is beyond float32
    without, _ = gradients(problem, injection=Injection("no_tail", {"tail_mask": no_tail}))
    right, _ = gradients(problem)
    assert not without["dq"].isfinite().all()
    assert right["dq"].isfinite().all() and float(right["dq"].abs().max()) < 1
