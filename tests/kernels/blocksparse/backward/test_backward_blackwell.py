"""The Blackwell backward kernel: what it is built from, what is refused, what it computes on the emulated GPU with
every check there is; ordered adds have the same bits in every schedule."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("cutlass")
pytest.importorskip("llvmlite")

from backward_problems import Spec, errors
from blackwell_backward import ARCH, check, run
from blocksparse_runs import ptx_of
from covering import covering, daily, nightly_unless

from kernels.blocksparse.backward.blackwell.tuning import blackwell_backward_tuning
from kernels.blocksparse.compile.build import build
from kernels.blocksparse.compile.supported import fits
from kernels.blocksparse.launch.backward import backward_variants
from kernels.blocksparse.launch.forward import for_operands
from kernels.blocksparse.lists.builder import dense
from kernels.blocksparse.spec.sm100 import COLUMNS
from kernels.blocksparse.spec.variant import (
    ARCHES,
    MASKS,
    Injection,
    Variant,
    backward_products,
)

SCHEDULES = ["in_order", "random", "oldest_last", "greedy"]


def variant(dim=64, mask="none", **options):
    return Variant(
        **{"kind": "backward", "dtype": "bfloat16", "dim_padded": dim, "mask": mask, "products": "tcgen05", **options}
    )


@pytest.mark.parametrize(
    ("dim", "tma", "bulk_dq"),
    [
        nightly_unless(not case.marks and case.values[0] == 128, *case.values)
        for case in covering([64, 128], [0, 1], [0, 1], strength=1)
    ],
)
def test_products_are_of_tensor_memory_and_copies_as_the_tuning_says(dim, tma, bulk_dq):
    ptx = ptx_of(variant(dim).with_tuning(tma=tma, bulk_dq=bulk_dq), ARCH)
    for form in (
        *("tcgen05.mma.cta_group::1.kind::f16", "tcgen05.ld.sync.aligned.32x32b", "tcgen05.st.sync.aligned.32x32b"),
        *("tcgen05.wait::ld", "tcgen05.wait::st", "tcgen05.fence::after_thread_sync", "tcgen05.commit"),
        *("cp.async.cg.shared.global", "fence.proxy.async"),
    ):
        assert form in ptx
    for form in ("mma.sync", "ldmatrix", "wgmma"):
        assert form not in ptx
    # K, V, a stage of Q and dO, 128 bytes of each row; LSE and delta
    assert ptx.count("cp.async.bulk.tensor.4d.shared::cta.global") == tma * 4 * dim // 64
    assert ptx.count("cp.async.bulk.shared::cluster.global") == tma * 2
    assert ptx.count("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32") == bulk_dq * dim // 16
    assert ("red.relaxed.gpu.global.add.v4.f32" in ptx) == (not bulk_dq)


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("deterministic", [True, False])
def test_ordered_adds_are_bulk_reductions_by_default(dim, deterministic):
    assert blackwell_backward_tuning(variant(dim, deterministic=deterministic)).bulk_dq == deterministic


@pytest.mark.nightly
@pytest.mark.parametrize("mask", MASKS)
def test_arrays_of_a_thread_stay_in_registers(mask):
    assert ".local" not in ptx_of(variant(128, mask, softcap=mask == "bits"), ARCH)


@pytest.mark.parametrize("arch", ARCHES)
def test_only_blackwell_has_it(arch):
    there = arch in ("sm_100a", "sm_103a")
    assert fits(variant(), arch) == there
    if not there:
        with pytest.raises(ValueError, match="products"):
            build(variant(), arch)


@pytest.mark.parametrize(
    "fields",
    [
        *({"tile_m": 64}, {"tile_n": 64}, {"dim_padded": 96}, {"dim_padded": 32}),
        *({"tuning": (("step_m", 64),)}, {"tuning": (("tma", 2),)}, {"tuning": (("bulk_dq", -1),)}),
    ],
)
def test_other_tiles_dims_and_tunings_are_refused(fields):
    small = variant(**fields)
    assert not fits(small, ARCH)
    with pytest.raises(ValueError, match=r"^variant\.(products is 'tcgen05'|tuning)"):
        build(small, ARCH)


@pytest.mark.parametrize("dim", [32, 64, 96, 120, 192])
@pytest.mark.parametrize("tiles", [(128, 128), (64, 128), (128, 64)])
def test_dispatch_falls_back_to_the_portable_kernel(dim, tiles):
    q = torch.zeros(1, 100, 1, dim, dtype=torch.bfloat16)
    blocks = dense((100,), (100,), tile_m=tiles[0], tile_n=tiles[1])
    before, main, after = backward_variants(q, blocks, products="tcgen05")
    there = tiles == (128, 128) and dim in (64, 120)
    assert main.products == after.products == ("tcgen05" if there else "mma") and before.products == "mma"
    assert backward_products("tcgen05", tiles[1], main.dim_padded, tiles[0]) == main.products


@pytest.mark.parametrize("dim", [64, 128])
def test_accumulators_fit_tensor_memory_and_share_it_where_they_must(dim):
    tuning = blackwell_backward_tuning(variant(dim))
    at = tuning.columns
    ends = {"s": at["s"] + 128, "dp": at["dp"] + 128, **{name: at[name] + dim for name in ("dv", "dk", "dq")}}
    assert max(ends.values()) <= COLUMNS
    overlap = {(a, b) for a in at for b in at if a < b and max(at[a], at[b]) < min(ends[a], ends[b])}
    assert overlap == ({("dp", "dq")} if tuning.shares_dq else set()) and tuning.shares_dq == (dim == 128)


@pytest.mark.parametrize(
    ("length", "dim"),
    [
        nightly_unless(not case.marks and case.values[1] == 64, *case.values)
        for case in covering([1, 65, 128, 129, 300], [64, 128], strength=1)
    ],
)
def test_dense_lengths_around_the_tiles(length, dim):
    check(Spec((length,), (length,), dim=dim))


FEATURES = {
    "ordered, a soft cap": Spec((300,), (200,), 2, 1, mask="causal", deterministic=True, softcap=1.5),
    "a group that is split": Spec((300, 70), (260, 130), 4, 2, mask="random", group_split=2),
    "packed, with empty sequences": Spec((200, 0, 130), (260, 5, 0), 2, 2, dim=120, mask="window", packed=True),
    "float16, views": Spec((200,), (260,), 2, 1, dim=56, mask="documents", dtype=torch.float16, view=True),
    "keys that no query sees": Spec((150,), (330,), 2, 2, dim=128, mask="holes"),
    "ordered, more queries than stages": Spec((1000,), (130,), 1, 1, deterministic=True, mask="window"),
}


@pytest.mark.parametrize("name", daily(list(FEATURES), ["ordered, more queries than stages"]))
def test_features_of_the_portable_kernel(name):
    check(FEATURES[name], warp_schedule="random", seed=len(name))


@pytest.mark.parametrize(
    ("tma", "bulk_dq", "deterministic", "dim"),
    [
        nightly_unless(not case.marks and case.values[-1] == 64, *case.values)
        for case in covering([0, 1], [0, 1], [True, False], [64, 128], strength=1)
    ],
)
def test_every_tuning_computes_the_same(tma, bulk_dq, deterministic, dim):
    tuning = (("bulk_dq", bulk_dq), ("tma", tma))
    spec = Spec((270,), (260,), 1, 1, dim=dim, mask="causal", deterministic=deterministic, tuning=tuning)
    check(spec, warp_schedule="random", seed=dim + tma)


@pytest.mark.parametrize("packed", [True, False])
def test_rows_after_a_sequence_may_hold_anything(packed):
    """In a packed layout they are the next sequence's rows. The first sequence's tiles end at 140 and 200 rows."""
    spec = Spec((140, 128), (200, 130), 1, 1, packed=packed, deterministic=True)

    def spoil(problem):
        for name, length in (("q", 140), ("do", 140), ("k", 200), ("v", 200)):
            x = problem.operands[name]
            (x if packed else x[0])[length:] = torch.nan

    _, out, _ = run(spec)
    _, again, reports = run(spec, prepare=spoil)
    assert [(r.status, r.findings) for r in reports] == [("finished", [])] * len(reports), "\n".join(map(str, reports))
    for name, length in (("dq", 140), ("dk", 200), ("dv", 200)):
        first = [x[name][:length] if packed else x[name][0, :length] for x in (out, again)]
        assert torch.equal(*first), name


def test_strides_that_a_tensor_map_cannot_have_are_loaded_without_one():
    of = variant()
    near = torch.empty_strided((2, 10, 1, 64), (640, 64, 64, 1), dtype=torch.bfloat16, device="meta")
    far = torch.empty_strided((2, 10, 1, 64), (1 << 39, 64, 64, 1), dtype=torch.bfloat16, device="meta")
    assert for_operands(of, near, near, near, near) == of
    for which in range(4):
        assert for_operands(of, *[far if i == which else near for i in range(4)]) == of.with_tuning(tma=0)


def daily_and_nightly(cases):
    """The cases with the first of the schedules, and the others marked as nightly."""
    later = [pytest.mark.nightly]
    return [pytest.param(*c.values, marks=[*c.marks, *later * (c.values[2] in SCHEDULES[1:])], id=c.id) for c in cases]


@pytest.mark.parametrize(
    ("mask", "dim", "order"),
    daily_and_nightly(covering(["full", "causal", "window", "documents", "random"], [64, 128], SCHEDULES, strength=1)),
)
def test_every_mask_in_every_schedule(mask, dim, order):
    spec = Spec((260,), (300,), 2, 1, dim=dim, mask=mask, deterministic=mask in ("causal", "random"))
    check(spec, warp_schedule=order, seed=1)


def test_more_blocks_than_the_entry_buffer_holds():
    check(Spec((128 * 35,), (40,), 2, 1, deterministic=True), warp_schedule="random", seed=2)


@pytest.mark.parametrize("dim", daily([64, 128], [64]))
def test_ordered_adds_have_the_same_bits_in_every_schedule(dim):
    spec = Spec((300,), (520,), 2, 1, dim=dim, mask="causal", deterministic=True, schedule="descending")
    ways = [{"resident_ctas": 1}, {"resident_ctas": 5, "dispatch": "permuted"}, {"resident_ctas": 3}]
    found = [
        check(spec, warp_schedule=order, seed=i, **way)
        for i, (order, way) in enumerate(zip(SCHEDULES, ways, strict=False))
    ]
    for other in found[1:]:
        assert all(torch.equal(found[0][name], other[name]) for name in ("dq", "dk", "dv"))


@pytest.mark.parametrize(
    ("point", "replacement", "wrong"),
    [
        ("start_of", lambda delta: delta, {"dq", "dk"}),
        nightly_unless(False, "dk_factor", lambda scale: scale * 0.0 + 1.0, {"dk"}),
    ],
)
def test_a_planted_bug_shows(point, replacement, wrong):
    problem, out, _ = run(Spec((100,), (140,)), Injection(f"planted_{point}", {point: replacement}))
    assert {name for name, error in errors(problem, out).items() if error > 1} == wrong
