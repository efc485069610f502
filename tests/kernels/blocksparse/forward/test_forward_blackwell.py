"""The Blackwell forward kernel: what it is built from, what is refused, what it computes on the emulated GPU with every
check there is, those of tcgen05's fences and waits among them."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from blocksparse_runs import BLACKWELL, ptx_of, run_forward
from covering import covering, daily, nightly_unless
from forward_cases import Case, drawn, errors, problem

pytest.importorskip("cutlass")

from fuzz.compiling import obtain
from fuzz.devices.cuda import build_of
from fuzz.devices.emulator import Emulator
from fuzz.devices.emulator.config import ALL_CHECKS
from kernels.blocksparse.compile.build import build
from kernels.blocksparse.compile.supported import fits
from kernels.blocksparse.forward.blackwell.tuning import blackwell_tuning
from kernels.blocksparse.launch.forward import for_operands
from kernels.blocksparse.spec.signature import ordered
from kernels.blocksparse.spec.variant import (
    ARCHES,
    MASKS,
    NO_INJECTION,
    Injection,
    Variant,
    arch_for_products,
    forward_products,
)

ARCH, DEVICE = "sm_100a", "cuda" if BLACKWELL else "cpu"
FP16 = torch.float16
KINDS = ["dense", "tokens", "intervals", "band"]


def case(*lengths, **fields):
    return Case(*lengths, **{"tile_m": 128, "tile_n": 128, "products": "tcgen05", **fields})


def variant(dim=64, tile_n=128, mask="none", **options):
    return Variant("forward", "bfloat16", dim, 128, tile_n, mask, products="tcgen05", **options)


@cache
def loaded(of, injection=NO_INJECTION):
    compiled = build(of, ARCH, injection) if injection.replacements else obtain(build_of(of, ARCH, NO_INJECTION)).folder
    return Emulator(strict=False, checks=ALL_CHECKS).load(compiled)


def run(p, injection=NO_INJECTION, **emulated):
    """The emulator's report; none on a Blackwell GPU."""
    if BLACKWELL:
        return run_forward(p, injection, ARCH)
    emulator = Emulator(strict=False, checks=ALL_CHECKS, **{"resident_ctas": 2, **emulated})
    return loaded(p.variant, injection)(*ordered("forward", p.values()), emulator=emulator)


def check(of, **emulated):
    p = problem(of, DEVICE)
    report = run(p, **emulated)
    assert report is None or report.ok, str(report)
    assert max(errors(p)) <= 1, (errors(p), of)


@pytest.mark.parametrize(
    ("dim", "tma"),
    [
        nightly_unless(not case.marks and case.values[0] == 96, *case.values)
        for case in covering([32, 96, 128], [0, 1], strength=1)
    ],
)
def test_products_are_of_tensor_memory_and_tiles_by_tma_or_portable(dim, tma):
    ptx = ptx_of(variant(dim, tile_n=64).with_tuning(tma=tma), ARCH)
    for form in (
        *("tcgen05.mma.cta_group::1.kind::f16", "tcgen05.ld.sync.aligned.32x32b", "tcgen05.st.sync.aligned.32x32b"),
        *("tcgen05.wait::ld", "tcgen05.wait::st", "tcgen05.fence::after_thread_sync", "tcgen05.commit"),
        *("cp.async.cg.shared.global", "mbarrier.try_wait.parity", "fence.proxy.async"),
    ):
        assert form in ptx
    for form in ("mbarrier.arrive.expect_tx", "cp.async.bulk.wait_group.read"):
        assert (form in ptx) == bool(tma)
    pieces = tma * (2 if dim == 128 else dim // 32)  # of a row: the spans of a swizzle, 64 or 32 columns
    assert ptx.count("cp.async.bulk.tensor.4d.shared::cta.global") == 3 * pieces
    assert ptx.count("cp.async.bulk.tensor.4d.global.shared::cta") == pieces
    for form in ("mma.sync", "ldmatrix", "wgmma", "cp.async.bulk.global", "clusterlaunchcontrol"):
        assert form not in ptx


@pytest.mark.parametrize("mask", daily(MASKS, ["band"]))
def test_arrays_of_a_thread_stay_in_registers(mask):
    assert ".local" not in ptx_of(variant(128, mask=mask), ARCH)


@pytest.mark.parametrize("arch", ARCHES)
def test_only_blackwell_has_it(arch):
    there = arch in ("sm_100a", "sm_103a")
    assert fits(variant(), arch) == there
    assert arch_for_products("tcgen05", arch) == (arch if there else ARCH)
    assert forward_products(arch, 128) != "tcgen05"
    if not there:
        with pytest.raises(ValueError, match="products"):
            build(variant(), arch)


def test_it_builds_for_sm_103a():
    assert "tcgen05.mma" in ptx_of(variant(tile_n=64), "sm_103a")


def test_only_forward_kernels_of_128_queries_have_it():
    small = replace(variant(), tile_m=64)
    assert not fits(small, ARCH)
    with pytest.raises(ValueError, match=r"variant\.tile_m is 64"):
        build(small, ARCH)


@pytest.mark.parametrize(
    "tuning", [{"step": 48}, {"stages": 3}, {"warps": 4}, {"ctas": 2, "stages": 2}, {"buffers": 3}, {"tma": 2}]
)
def test_a_tuning_that_cannot_work_is_refused(tuning):
    with pytest.raises(ValueError, match=r"variant\.tuning"):
        build(variant(128).with_tuning(**tuning), ARCH)


@pytest.mark.parametrize("length", [1, 65, 128, 129, 400])
def test_dense_lengths_around_the_tiles(length):
    check(case((length,), (length,)))


@pytest.mark.parametrize(
    ("dim", "tile_n"),
    [
        nightly_unless(not case.marks and case.values[0] == 64, *case.values)
        for case in covering([32, 64, 96, 128, 160, 192, 256], [64, 128], strength=1)
    ],
)
def test_every_padded_head_dim(dim, tile_n):
    check(case((130,), (300,), 1, 1, dim=dim, tile_n=tile_n, dtype=FP16 if dim % 64 else torch.bfloat16))
    check(case((70, 20), (150, 9), 1, 1, dim=dim - 8, tile_n=tile_n, mask="tokens", packed=True))


@pytest.mark.parametrize(
    ("mask", "tile_n", "softcap"),
    [
        nightly_unless(not case.marks and case.values[:2] == ("intervals", 64), *case.values)
        for case in covering(KINDS, [64, 128], [None, 0.5], strength=1)
    ],
)
def test_masks_in_every_tile(mask, tile_n, softcap):
    check(case((150,), (270,), mask=mask, tile_n=tile_n, left=40, right=9, align="bottom_right", softcap=softcap))


@pytest.mark.parametrize(("heads_q", "heads_kv"), [(4, 1), (6, 2), (3, 3)])
def test_query_heads_share_key_heads(heads_q, heads_kv):
    check(case((70,), (170,), heads_q, heads_kv, mask="tokens"))


@pytest.mark.parametrize(
    ("mask", "packed"),
    [
        nightly_unless(not case.marks and case.values[0] != "intervals", *case.values)
        for case in covering(["dense", "tokens", "intervals", "band"], [True, False], strength=1)
    ],
)
def test_sequences_of_many_lengths(mask, packed):
    check(case((65, 0, 1, 100), (30, 40, 0, 130), mask=mask, packed=packed))


@pytest.mark.parametrize("mask", ["tokens", "blocks"])
def test_rows_and_heads_without_keys_are_zero(mask):
    check(case((130,), (130,), 3, 3, mask=mask, empty=True))


def test_operands_may_be_slices():
    check(case((70,), (80,), 2, 1, dim=40, mask="tokens", view=True))


@pytest.mark.parametrize("scale", [1e-3, 3.0])
def test_scores_of_any_size(scale):
    check(case((64,), (330,), mask="tokens", scale=scale, spread=2.0))


@pytest.mark.parametrize(
    ("ctas", "stages", "buffers", "step", "tma"),
    [
        *(
            nightly_unless(not case.marks and case.values[3] == 32, *case.values)
            for case in covering([1], [1, 2], [1, 2], [32, 64, 128], [0, 1], strength=1)
        ),
        nightly_unless(False, 2, 1, 2, 64, 1),
    ],
)
def test_every_tuning_computes_the_same(ctas, stages, buffers, step, tma):
    tuning = (("buffers", buffers), ("ctas", ctas), ("stages", stages), ("step", step), ("tma", tma))
    check(case((130,), (400,), dim=64, mask="tokens", tuning=tuning, spread=3.0), warp_schedule="random")


def test_two_ctas_share_the_tensor_memory_of_an_sm():
    of = variant(128)
    tuning = blackwell_tuning(of)
    assert tuning.ctas == 2 and tuning.columns(of) == 256 and blackwell_tuning(variant(160)).ctas == 1
    check(case((300,), (300,), dim=64, mask="band"), warp_schedule="random", ctas_per_sm=2, resident_ctas=4)


@pytest.mark.parametrize("seed", daily(range(40), [3]))
def test_random_problems_under_random_schedules_are_right(seed):
    of = drawn(seed, products="tcgen05", tile_m=128)
    check(of, warp_schedule="random", seed=seed, resident_ctas=1 + seed % 4)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 120))
def test_random_problems_without_tma_are_right(seed):
    of = drawn(seed, products="tcgen05", tile_m=128, tuning=(("tma", 0),))
    check(of, warp_schedule="random", seed=seed, resident_ctas=1 + seed % 4)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("packed", [True, False])
def test_rows_after_a_sequence_may_hold_anything(packed, value):
    """In a packed layout they are the next sequence's rows. The first sequence's tiles end at 128 and 200 keys."""
    p = problem(case((140, 30), (200, 130), 2, 1, packed=packed), DEVICE)
    answers = [p.o.clone(), p.lse.clone()]
    run(p)
    clean = [p.o.clone(), p.lse.clone()]
    for x, lengths in ((p.q, p.case.lengths_q), (p.k, p.case.lengths_k), (p.v, p.case.lengths_k)):
        if packed:
            x[lengths[0] :] = value
        else:
            x[0, lengths[0] :] = value
    p.o.copy_(answers[0]), p.lse.copy_(answers[1])
    report = run(p)
    assert report is None or report.ok, str(report)
    rows = p.case.lengths_q[0]
    o, lse = (p.o, p.lse[:, :rows]) if packed else (p.o[0], p.lse[0, :, :rows])
    was_o, was_lse = (clean[0], clean[1][:, :rows]) if packed else (clean[0][0], clean[1][0, :, :rows])
    assert torch.equal(o[:rows], was_o[:rows]) and torch.equal(lse, was_lse)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("tma", daily([0, 1], [1]))
def test_rows_after_a_sequence_are_not_written(packed, tma):
    """Of a padded layout those up to the longest sequence, which no sequence has; of a packed one what lies before and
    after all sequences. The first sequence ends within a tile, the second one with a tile."""
    p = problem(case((140, 256), (70, 70), 2, 1, packed=packed, dim=40, tuning=(("tma", tma),)), DEVICE)
    shape = p.o.shape
    around = torch.full((shape[0] + 2, *shape[1:]) if packed else (shape[0], shape[1] + 2, *shape[2:]), torch.nan)
    around = torch.nn.functional.pad(around, (0, 24), value=torch.nan).to(p.o)
    inner = around[1:-1, ..., :40] if packed else around[:, 1:-1, ..., :40]
    p = replace(p, o=inner)
    report = run(p)
    assert report is None or report.ok, str(report)
    assert max(errors(p)) <= 1, errors(p)
    written = torch.zeros_like(around, dtype=torch.bool)
    own = written[1:-1, ..., :40] if packed else written[:, 1:-1, ..., :40]
    if packed:
        own[:] = True
    else:
        own[0, :140], own[1] = True, True
    assert torch.equal(around.isnan(), ~written)


@pytest.mark.parametrize(
    ("layout", "dim"), [((0, 2, 1, 3), 64), ((1, 0, 2, 3), 40), nightly_unless(False, (2, 1, 0, 3), 128)]
)
def test_tensor_maps_of_any_strides(layout, dim):
    """The dims of q, k, v and o lie in memory in another order, some of them further apart than they need."""
    p = problem(case((140, 128), (128, 300), 2, 1, dim=dim, mask="tokens"), DEVICE)
    for name in ("q", "k", "v", "o"):
        x = getattr(p, name)
        inverse = [layout.index(i) for i in range(4)]
        moved = torch.nn.functional.pad(x.permute(layout), (0, 8, 0, 1))[..., :-1, : x.shape[-1]].permute(inverse)
        p = replace(p, **{name: moved})
    report = run(p)
    assert report is None or report.ok, str(report)
    assert max(errors(p)) <= 1, errors(p)


def test_keys_that_all_heads_share_have_a_stride_of_zero():
    p = problem(case((130,), (260,), 4, 1, mask="band"), DEVICE)
    shared = replace(p, k=p.k.expand(-1, -1, 4, -1), v=p.v.expand(-1, -1, 4, -1))
    report = run(shared)
    assert report is None or report.ok, str(report)
    assert max(errors(p)) <= 1, errors(p)


def test_strides_that_a_tensor_map_cannot_have_are_loaded_without_one():
    of = variant()
    q = torch.empty_strided((2, 10, 1, 64), (640, 64, 64, 1), dtype=torch.bfloat16, device="meta")
    far = torch.empty_strided((2, 10, 1, 64), (1 << 39, 64, 64, 1), dtype=torch.bfloat16, device="meta")
    near = torch.empty_strided((2, 10, 1, 64), ((1 << 39) - 8, 64, 64, 1), dtype=torch.bfloat16, device="meta")
    assert for_operands(of, q, near, near, near) == of
    for which in range(4):
        operands = [far if i == which else q for i in range(4)]
        assert for_operands(of, *operands) == of.with_tuning(tma=0)
    portable = replace(of, products="mma")
    assert for_operands(portable, far, far, far, far) == portable


@pytest.mark.parametrize("schedule", ["in_order", "oldest_last", "greedy"])
def test_rows_whose_maxima_grow_with_every_step_are_right(schedule):
    """O is rescaled in every step: keys come in ascending order of their scores, far apart."""
    p = problem(case((128,), (640,), 1, 1, dim=32, scale=1.0), DEVICE)
    p.q[:] = 1.0
    p.k[:] = (torch.arange(640) // 128).to(p.k)[None, :, None, None] * 0.5
    report = run(p, warp_schedule=schedule)
    assert report is None or report.ok, str(report)
    assert max(errors(p)) <= 1, errors(p)


@pytest.mark.parametrize(
    ("point", "replacement", "spread"),
    [
        nightly_unless(False, "keep_keys", lambda rows, keys_left: None, 0.5),
        nightly_unless(False, "correction", lambda old, new, to_log2: 1.0, 4.0),
        ("kv_head_of", lambda head, heads_q, heads_kv: head % heads_kv, 1.0),
    ],
)
def test_a_planted_bug_shows(point, replacement, spread):
    p = problem(case((100,), (140,), heads_q=4, heads_kv=2, spread=spread), DEVICE)
    run(p, Injection(f"planted_{point}", {point: replacement}))
    assert max(errors(p)) > 1


def test_an_operator_takes_it_for_tiles_of_128_queries():
    from kernels.blocksparse import block_sparse_attention
    from kernels.blocksparse.lists.builder import dense

    q = torch.zeros(1, 1, 100, 64, dtype=torch.bfloat16)
    blocks = dense((100,), (100,), tile_m=64, tile_n=64)
    with pytest.raises(ValueError, match=r"^blocks\.tile_m: needs 128 or 256 for products 'tcgen05', got 64"):
        block_sparse_attention(q, q, q, blocks, products="tcgen05")
