"""The transposed main loop of Hopper's backward kernel: what it is built from, and what it computes on the emulated GPU
with all of its checks. Planted bugs: test_backward_transposed_planted.py."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

pytest.importorskip("cutlass")
pytest.importorskip("llvmlite")

from backward_problems import Spec, make
from backward_problems import run as run_problem
from blocksparse_runs import ptx_of
from covering import covering, daily, nightly_unless
from transposed_backward import ARCH, WITH_RUNS, check, checked, loaded, products_of, run, variant
from transposed_specs import ORDERED_RUNS, SPECS

from fuzz.devices.emulator import Emulator
from kernels.blocksparse.backward.tiling import SHARED_MEMORY, choose_tiling
from kernels.blocksparse.lists.from_mask import from_mask
from kernels.blocksparse.lists.types import BlockSparse
from kernels.blocksparse.spec.signature import ordered
from kernels.blocksparse.spec.variant import MASKS

SCHEDULES = ["in_order", "random", "oldest_last", "greedy"]


@pytest.mark.parametrize("dim", daily([64, 128], [128]))
def test_loads_are_bulk_copies_and_dq_is_added_by_bulk_reductions(dim):
    ptx = ptx_of(variant(dim, "bits", deterministic=True), ARCH)
    for form in (
        *("cp.async.bulk.tensor.4d.shared::c", "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32"),
        *("mbarrier.arrive.expect_tx", "setmaxnreg.dec.sync.aligned.u32", "wgmma.mma_async", "ld.acquire.gpu"),
        *("cp.async.bulk.wait_group \t0", "cp.async.bulk.wait_group.read \t0", "stmatrix"),
    ):
        assert form in ptx, form
    for form in ("mma.sync", "red.relaxed.gpu.global.add", ".local"):
        assert form not in ptx, form
    assert ("ldmatrix" in ptx) == (dim == 128), "columns of K and V that registers hold"


CUOBJDUMP = Path(find_spec("triton").origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


@pytest.mark.skipif(shutil.which("ptxas") is None or not CUOBJDUMP.exists(), reason="needs ptxas and cuobjdump")
@pytest.mark.parametrize(
    ("dim", "mask", "deterministic", "tuning"),
    [
        *(
            nightly_unless(not case.marks and case.values[:2] == (128, "bits"), *case.values)
            for case in covering([64, 128], MASKS, [False, True], [()], strength=1)
        ),
        nightly_unless(False, 128, "none", False, WITH_RUNS),
        nightly_unless(False, 128, "none", True, WITH_RUNS),
    ],
)
def test_products_run_beside_other_work_and_their_registers_are_not_spilled(dim, mask, deterministic, tuning, tmp_path):
    """ptxas names kernels whose wgmma it serialises: C7510 to C7514. The scheduling warp, which has the atomic add to
    the tile counter, may spill: once for a tile and for each window. So may others, once for a tile, outside of the
    steps."""
    path = tmp_path / "kernel.ptx"
    of = variant(dim, mask, deterministic=deterministic, tuning=tuning)
    path.write_text(ptx_of(of, ARCH))
    cubin = str(tmp_path / "kernel.cubin")
    command = ["ptxas", "-v", "-arch=sm_90a", str(path), "-o", cubin]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    if "Unsupported .version" in said:
        pytest.skip("this ptxas is too old for the PTX")
    assert not re.search(r"C75\d\d", said), said
    sass = subprocess.run([CUOBJDUMP, "-sass", cubin], capture_output=True, text=True, check=True).stdout
    roles = sass.split(" EXIT ")  # of each role, the one that multiplies last but for what its branches jump to
    for role in roles:
        if "ATOMG" in role or not re.search("HGMMA|UTMALDG|UBLKRED", role):
            continue
        what = next(what for what in ("HGMMA", "UTMALDG", "UBLKRED") if what in role)
        steps = role[role.index(what) : role.rindex(what)] if role.count(what) > 1 else role
        assert not re.search(r"\b(STL|LDL)\b", steps)
    assert sum("ATOMG" in role for role in roles) == 1


DEPTHS = {24: 32, 72: 80, 96: 96, 104: 112}  # by head dim
OF_DAILY = (
    "band, ordered",
    "head dim 72, ordered",
    "more blocks than the entry buffer holds",
    "two buffers of dQ",
)


@pytest.mark.parametrize("name", daily(list(SPECS), OF_DAILY))
def test_gradients(name):
    """By the kernel that the name tells of; and it asks for the shared memory of its tiling, and a little for announced
    tiles, mbarriers and what aligns them."""
    kernels = {}

    def kept(of, injection):
        kernels[of.kind] = of, loaded(of, injection)
        return kernels[of.kind][1]

    _, reports = checked(SPECS[name], compiled=kept)
    of, compiled = kernels["backward"]
    tiling, [launch] = choose_tiling(of, ARCH), compiled.host.launches
    assert bool(products_of(reports[1], "m64n80k16")) == (name.startswith("runs of tiles") or tiling.depth == 80)
    assert (tiling.stages_dq == 2) == name.startswith(("two buffers of dQ", "head dim 72"))
    assert tiling.depth == DEPTHS.get(SPECS[name].dim, 0)
    assert bool(products_of(reports[1], f"m64n{tiling.depth}k16")) == (tiling.depth > 0)  # of dK and dV
    assert tiling.shared_bytes <= launch.shared <= min(tiling.shared_bytes + 1024, SHARED_MEMORY[90])


@pytest.mark.parametrize(
    ("dim", "tile_m", "mask", "order", "slots"),
    [
        nightly_unless(not case.marks and case.values[2] != "documents", *case.values)
        for case in covering(
            [64, 128], [64, 128], ["full", "causal", "documents", "random"], SCHEDULES, [1, 3, 5], strength=1
        )
    ],
)
def test_ordered_adds_have_the_same_bits_in_every_schedule(dim, tile_m, mask, order, slots):
    spec = Spec((200, 130), (330, 140), 2, 1, dim=dim, tile_m=tile_m, mask=mask, deterministic=True)
    first = check(spec)
    again = check(spec, resident_ctas=slots, warp_schedule=order, seed=slots, dispatch="permuted")
    for name, x in first.items():  # rows past a sequence's end are NaN still
        assert torch.equal(x.nan_to_num(7.0), again[name].nan_to_num(7.0)), name


@pytest.mark.parametrize(
    ("name", "order", "slots"),
    [
        nightly_unless(
            not case.marks and case.values[0] == "runs of tiles, ordered" and case.values[1] == "in_order", *case.values
        )
        for case in covering(list(ORDERED_RUNS), SCHEDULES, [1, 2, 3, 9], strength=1)
    ],
)
def test_ordered_runs_have_the_same_bits_in_every_schedule(name, order, slots):
    first, reports = checked(ORDERED_RUNS[name])
    assert products_of(reports[1], "m64n80k16")
    again = check(ORDERED_RUNS[name], resident_ctas=slots, warp_schedule=order, seed=slots, dispatch="permuted")
    assert all(torch.equal(x, again[name]) for name, x in first.items())


def test_every_step_of_ordered_runs_counts_the_tiles_of_keys():
    """1,300 queries are two runs of five tiles and a tile that is cut off. One step of 80 begins in the third and in
    the fifth tile of a run, two begin in its other tiles; two steps of 64 begin in the last tile."""
    semaphores = semaphores_of(ORDERED_RUNS["runs of tiles, ordered"])
    steps = torch.tensor([[1, 1], [1, 1], [1, 0], [1, 1], [1, 0]] * 2 + [[1, 1]])
    assert torch.equal(semaphores, 3 * steps.T[:, None, None].expand_as(semaphores))


def semaphores_of(spec: Spec) -> torch.Tensor:
    """(2, batch, heads, tiles of queries) after a run."""

    def launch(of, values):
        values = {**values, "resident": 3} if of.kind == "backward" else values
        report = loaded(of)(*ordered(of.kind, values), emulator=Emulator(strict=False, resident_ctas=3))
        assert report.status == "finished"

    return run_problem(make(replace(spec, products="wgmma", tile_n=128)), launch)[1].semaphores


@pytest.mark.parametrize(
    "other",
    [
        {"whole": False},
        {"packed": True, "whole": False},
        {"lens_k": (300,) * 2},
        {"schedule": "descending"},
        {"mask": "causal"},
    ],
)
def test_ordered_runs_are_refused_where_steps_may_differ(other):
    """By lengths on the device, a tile that is cut off, a schedule that says nothing of the rows, or the mask."""
    spec = replace(ORDERED_RUNS["runs of tiles, ordered"], **other)
    with pytest.raises(ValueError, match=r"^(tuning: with ordered adds runs need|variant\.tuning has transposed)"):
        run(spec)


def in_order_of(spec: Spec, order: list[int]) -> BlockSparse:
    """Blocks of a spec with one head and no mask, each row of whose backward lists is visited in this order."""
    blocks = make(replace(spec, products="wgmma", tile_n=128)).blocks
    full = blocks.backward.full
    index = full.index.clone()
    for begin in full.begin.flatten().tolist():
        index[begin : begin + len(order)] = torch.tensor(order, dtype=torch.int32)
    lists = replace(blocks.backward, full=replace(full, index=index))
    return replace(blocks, backward=lists, merged=False)


def steps_of(spec: Spec, **options) -> tuple[int, int]:
    """(tiles in runs, other tiles) that the backward kernel of a spec with runs computes: five tiles of a run are eight
    steps of 80 queries, any other tile is two of 64, of as many products each."""
    _, reports = checked(replace(spec, tuning=WITH_RUNS), **options)
    wide, narrow = (products_of(reports[1], shape) for shape in ("m64n80k16", "m64n64k16"))
    a_step = COUNTED * (spec.dim // 16 * 2 + 8)
    assert wide % (8 * a_step) == narrow % (2 * a_step) == 0
    return wide // (8 * a_step) * 5, narrow // (2 * a_step)


COUNTED = 16  # how often `products_of` counts a product: twice in each of eight warps


@pytest.mark.parametrize(
    "order",
    [
        nightly_unless(False, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        nightly_unless(False, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]),
        [0, 9, 2, 3, 1, 5, 4, 7, 8, 6],
    ],
    ids=str,
)
def test_five_tiles_are_a_run_wherever_they_lie(order):
    spec = Spec((1280,), (256,), dim=128, tile_m=128)
    assert steps_of(spec, blocks=in_order_of(spec, order)) == (20, 0)


@pytest.mark.parametrize(
    ("spec", "in_runs", "others"),
    [
        (Spec((384,), (128,), 2, 1, group_split=1), 5, 1),
        (Spec((600,), (128,)), 0, 5),
        nightly_unless(False, Spec((700,), (128,), 2, 1, group_split=1), 10, 2),
        nightly_unless(False, Spec((768,), (100,)), 0, 6),
        nightly_unless(False, Spec((700, 384), (128, 128), packed=True), 5, 4),
    ],
    ids=["of two heads", "the last tile is cut off", "before tiles that are", "keys are cut off", "of one sequence"],
)
def test_runs_have_whole_tiles_of_a_units_heads(spec, in_runs, others):
    assert steps_of(replace(spec, dim=128, tile_m=128)) == (in_runs, others)


@pytest.mark.parametrize("mask", daily(["bits", "causal", "documents"], ["bits"]))
def test_masked_tiles_come_behind_the_runs_of_their_window(mask):
    """Masks are causal, as a band and as packed bits, and documents, whose rows have more blocks than a window."""
    lengths = (4500, 300) if mask == "documents" else (1400, 1400)
    spec = Spec(lengths[:1], lengths[1:], dim=128, tile_m=128, mask="documents" if mask == "documents" else "causal")
    kept = torch.ones(1, 1, *lengths, dtype=torch.bool).tril()
    in_runs, others = steps_of(spec, blocks=from_mask(kept) if mask == "bits" else None)
    assert in_runs and others and in_runs + others == entries_of(spec)


def entries_of(spec: Spec) -> int:
    """Blocks that the lists of a spec's backward pass name."""
    lists = make(replace(spec, products="wgmma", tile_n=128)).blocks.backward
    return int(lists.full.count.sum() + lists.partial.count.sum())


@pytest.mark.parametrize(
    "name",
    daily(
        ["full", "band, ordered", "window, packed", "runs of tiles, causal", "no keys"],
        ["band, ordered"],
    ),
)
def test_persistent_ctas_compute_what_a_cta_for_each_tile_does(name):
    """dK and dV, and dQ where adds are ordered, bit for bit; one CTA takes all tiles."""
    one, many = (check(SPECS[name], resident_ctas=count) for count in (1, 40))
    for gradient in ("dk", "dv", *["dq"] * SPECS[name].deterministic):
        assert torch.equal(one[gradient].nan_to_num(7.0), many[gradient].nan_to_num(7.0))
