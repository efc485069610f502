"""The Blackwell backward kernel on pairs of CTAs: what it is built from, what is refused, what it computes on the
emulated GPU with every check there is; ordered adds have the same bits in every schedule; planted bugs show."""

from __future__ import annotations

import re
from functools import partial

import pytest
import torch

pytest.importorskip("cutlass")
pytest.importorskip("llvmlite")

import blackwell_backward
from backward_problems import Spec, errors
from blackwell_backward import ARCH
from blocksparse_runs import ptx_of
from covering import covering, daily, nightly_unless
from cutlass import Int32, cute

from kernels.blocksparse.backward.blackwell.pairs.tuning import pair_tuning
from kernels.blocksparse.common import tcgen05
from kernels.blocksparse.compile.build import build
from kernels.blocksparse.compile.supported import fits
from kernels.blocksparse.spec.sm100 import COLUMNS
from kernels.blocksparse.spec.variant import ARCHES, MASKS, Injection, Variant

SCHEDULES = ["in_order", "random", "oldest_last", "greedy"]


def variant(dim=128, mask="none", **options):
    fields = {"kind": "backward", "dtype": "bfloat16", "dim_padded": dim, "tile_n": 256, "mask": mask}
    return Variant(**{**fields, "products": "tcgen05", **options})


run, check = (partial(each, tile_n=256, resident_ctas=4) for each in (blackwell_backward.run, blackwell_backward.check))


@pytest.mark.parametrize(("dim", "tma"), [nightly_unless(False, 64, 1), (128, 1), nightly_unless(False, 128, 0)])
def test_products_are_of_pairs_and_copies_as_the_tuning_says(dim, tma):
    ptx = ptx_of(variant(dim) if tma else variant(dim).with_tuning(tma=0), ARCH)
    instructions = set(re.findall(r"tcgen05\.\w+\.cta_group::(\d)", ptx))
    assert instructions == {"2"}
    for form in ("st.shared::cluster.v4", "multicast::cluster", "barrier.cluster.arrive"):
        assert form in ptx
    assert ptx.count("fence.proxy.async.shared::cluster") == 1  # of dS, which goes to both CTAs
    for form in ("mma.sync", "ldmatrix", "wgmma"):
        assert form not in ptx
    # K, V, Q (by each of two warps) and dO by rows: 128 bytes of each row; K of both CTAs, Q and dO by columns
    assert ptx.count("cp.async.bulk.tensor.4d.shared::cta.global") == tma * (5 * dim // 64 + 4)
    assert ptx.count("cp.async.bulk.shared::cluster.global") == tma * 3


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
    "fields", [{"tile_m": 64}, {"dim_padded": 96}, {"products": "mma"}, {"kind": "postprocess"}, {"kind": "forward"}]
)
def test_other_kernels_have_no_tiles_of_256_keys(fields):
    with pytest.raises(ValueError, match=r"^variant\.tile_n 256"):
        variant(**fields)


@pytest.mark.parametrize("tuning", [("step_m", 64), ("tma", 2), ("bulk_dq", 1)])
def test_other_tunings_are_refused(tuning):
    assert not fits(variant(tuning=(tuning,)), ARCH)
    with pytest.raises(ValueError, match=r"^variant\.tuning"):
        build(variant(tuning=(tuning,)), ARCH)


@pytest.mark.parametrize("dim", [64, 128])
def test_accumulators_fit_tensor_memory_and_share_it_where_they_must(dim):
    tuning = pair_tuning(variant(dim))
    at = tuning.columns
    sizes = {"s": 128, "dp": 128, "dv": dim, "dk": dim, "dq": dim // 2}
    ends = {name: at[name] + size for name, size in sizes.items()}
    assert max(ends.values()) <= COLUMNS
    overlap = {(a, b) for a in at for b in at if a < b and max(at[a], at[b]) < min(ends[a], ends[b])}
    assert overlap == ({("dp", "dq")} if tuning.shares_dq else set()) and tuning.shares_dq == (dim == 128)


LENGTHS = [(1, 1, 128), (65, 129, 128), (128, 256, 64), (129, 257, 128), (300, 520, 64)]


@pytest.mark.parametrize(("queries", "keys", "dim"), [nightly_unless(one[0] == 300, *one) for one in LENGTHS])
def test_dense_lengths_around_the_tiles(queries, keys, dim):
    check(Spec((queries,), (keys,), dim=dim))


FEATURES = {
    "ordered, a soft cap": Spec(
        (300,), (300,), 2, 1, dim=128, mask="causal", deterministic=True, softcap=1.5, schedule="permutation"
    ),
    "a group that is split": Spec((300, 70), (390, 130), 4, 2, dim=128, mask="random", group_split=2),
    "packed, a group that is split": Spec((300, 70), (390, 130), 2, 1, dim=128, packed=True, group_split=2),
    "packed, with empty sequences": Spec((200, 0, 130), (260, 5, 0), 2, 2, dim=120, mask="window", packed=True),
    "float16, views": Spec((200,), (260,), 2, 1, dim=104, mask="documents", dtype=torch.float16, view=True),
    "keys that no query sees": Spec((150,), (330,), 2, 2, dim=128, mask="holes"),
    "ordered, more queries than stages": Spec((1000,), (130,), 1, 1, dim=128, deterministic=True, mask="window"),
    "without TMA": Spec((270,), (400,), 1, 1, dim=128, mask="causal", deterministic=True, tuning=(("tma", 0),)),
}


@pytest.mark.parametrize("name", daily(list(FEATURES), ["packed, a group that is split"]))
def test_features_of_the_portable_kernel(name):
    check(FEATURES[name], warp_schedule="random", seed=len(name))


@pytest.mark.nightly
@pytest.mark.parametrize("packed", [True, False])
def test_rows_after_a_sequence_may_hold_anything(packed):
    """In a packed layout they are the next sequence's rows. The first sequence's tiles end at 140 and 200 rows."""
    spec = Spec((140, 128), (200, 130), 1, 1, dim=128, packed=packed, deterministic=True)

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


def daily_and_nightly(cases):
    """The cases with the first of the schedules, and the others marked as nightly."""
    later = [pytest.mark.nightly]
    return [pytest.param(*c.values, marks=[*c.marks, *later * (c.values[2] in SCHEDULES[1:])], id=c.id) for c in cases]


@pytest.mark.parametrize(
    ("mask", "dim", "order"),
    daily_and_nightly(covering(["full", "causal", "window", "documents", "random"], [64, 128], SCHEDULES, strength=1)),
)
def test_every_mask_in_every_schedule(mask, dim, order):
    spec = Spec((260,), (420,), 2, 1, dim=dim, mask=mask, deterministic=mask in ("causal", "random"))
    check(spec, warp_schedule=order, seed=1)


@pytest.mark.nightly
@pytest.mark.parametrize("dim", [64, 128])
def test_ordered_adds_have_the_same_bits_in_every_schedule(dim):
    spec = Spec((300,), (1030,), 2, 1, dim=dim, mask="causal", deterministic=True, schedule="descending")
    ways = [{"resident_ctas": 2}, {"resident_ctas": 8, "dispatch": "permuted"}, {"resident_ctas": 4}]
    ways.append({"resident_ctas": 20})
    found = [
        check(spec, warp_schedule=order, seed=i, **way)
        for i, (order, way) in enumerate(zip(SCHEDULES, ways, strict=True))
    ]
    for other in found[1:]:
        assert all(torch.equal(found[0][name], other[name]) for name in ("dq", "dk", "dv"))


@cute.jit
def no_wait(w, step: Int32) -> None:
    tcgen05.fence_after()


@cute.jit
def nothing() -> None:
    pass


WRONG = "wrong"
# name → (replacements, what shows: kinds of findings, a deadlock or wrong gradients). Beside those of kernels/mutants
MUTANTS = {
    "queries_of_the_leader": ({"row_of_share": lambda rank: rank * 0}, {WRONG}),
    "ds_kept": ({"owner_of": lambda half: half * 0}, {WRONG, "race"}),
    "dq_columns_of_the_other_cta_overwritten": ({"await_columns": no_wait}, {"race", "tensor memory"}),
    "ds_without_proxy_fence": ({"publish_ds": nothing}, {"fence.proxy.async"}),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_shows(name):
    replacements, told = MUTANTS[name]
    spec = Spec((300,), (520,), 1, 1, dim=64)
    problem, out, reports = run(spec, Injection(name, replacements), warp_schedule="random", seed=1)
    shown = " ".join([f.kind for r in reports for f in r.findings] + [r.status for r in reports])
    if reports[-1].status == "finished" and len(reports) == 3 and max(errors(problem, out).values()) > 1:
        shown += " " + WRONG
    assert any(kind in shown for kind in told), shown
