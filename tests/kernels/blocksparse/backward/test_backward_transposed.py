"""The transposed main loop of Hopper's backward kernel: what it is built from, what it computes on the emulated GPU
with all of its checks, and what planted bugs do."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("cutlass")
pytest.importorskip("llvmlite")

import cutlass
from backward_problems import Spec, errors, make
from blocksparse_runs import ptx_of
from covering import covering, daily, nightly_unless
from cutlass import Boolean, Int32, cute
from transposed_backward import ARCH, WITH_RUNS, check, checked, loaded, products_of, run, variant

from fuzz.devices.emulator import Emulator
from fuzz.devices.emulator.config import ALL_CHECKS
from kernels.blocksparse.backward.mainloop_mma import release, wait
from kernels.blocksparse.backward.tiling import HALF, SHARED_MEMORY, choose_tiling
from kernels.blocksparse.backward.transposed import (
    dq_warps,
    kernel,
    loads,
    mainloop,
    runs_dq_warps,
    tile_scheduler,
    turns,
)
from kernels.blocksparse.backward.transposed.turns import DqBarrier
from kernels.blocksparse.compile.build import build
from kernels.blocksparse.lists.types import BlockSparse
from kernels.blocksparse.lists.write_order import with_order
from kernels.blocksparse.spec.variant import MASKS, NO_INJECTION, OF_POSTPROCESS, OF_PREPROCESS
from kernels.mutants.blocksparse.table import MUTANTS

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
    for form in ("mma.sync", "ldmatrix", "red.relaxed.gpu.global.add", ".local"):
        assert form not in ptx, form


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
    steps, and the dQ warps of ordered runs, whose steps may lie in two tiles."""
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
        ordered_runs = "UBLKRED" in role and deterministic and choose_tiling(of, ARCH).runs
        if "ATOMG" in role or ordered_runs or not re.search("HGMMA|UTMALDG|UBLKRED", role):
            continue
        what = next(what for what in ("HGMMA", "UTMALDG", "UBLKRED") if what in role)
        steps = role[role.index(what) : role.rindex(what)] if role.count(what) > 1 else role
        assert not re.search(r"\b(STL|LDL)\b", steps)
    assert sum("ATOMG" in role for role in roles) == 1


SPECS = {
    "full": Spec((150,), (130,), dim=128, tile_m=128),
    "band, ordered": Spec((150, 300), (330, 270), 2, 1, dim=128, tile_m=128, mask="causal", deterministic=True),
    "bits, a soft cap, split": Spec(
        (300, 70), (260, 130), 4, 2, dim=64, tile_m=128, mask="random", softcap=1.5, group_split=2
    ),
    "window, packed": Spec((200, 0, 130), (260, 5, 70), 2, 2, dim=128, tile_m=64, mask="window", packed=True),
    "intervals, float16, a view": Spec(
        (200,), (260,), 2, 1, dim=56, tile_m=128, mask="documents", dtype=torch.float16, view=True
    ),
    "more blocks than the entry buffer holds": Spec(
        (64 * 70 + 1,), (130,), 2, 1, dim=64, tile_m=64, deterministic=True, group_split=1
    ),
    "float32": Spec((140,), (130,), 2, 1, dim=120, tile_m=128, mask="random", float32=True),
    "runs of tiles": Spec((800,), (150,), 2, 1, dim=128, tile_m=128, tuning=WITH_RUNS),
    "runs of tiles, causal": Spec((1500, 300), (1400, 300), dim=128, tile_m=128, mask="causal"),
    "runs of tiles, three windows of pieces, packed": Spec(
        (1300, 650), (260, 140), 8, 1, dim=128, tile_m=128, packed=True, tuning=WITH_RUNS
    ),
    "runs of tiles, split, float16, a view": Spec(
        (1290,),
        (128,),
        4,
        1,
        dim=104,
        tile_m=128,
        dtype=torch.float16,
        view=True,
        group_split=2,
        tuning=WITH_RUNS,
    ),
    "runs of tiles, ordered, two windows of entries, packed": Spec(
        (1300, 650),
        (260, 140),
        4,
        1,
        dim=128,
        tile_m=128,
        packed=True,
        deterministic=True,
        group_split=1,
        tuning=WITH_RUNS,
    ),
    "runs of tiles, ordered, intervals, float16, a view": Spec(
        (1290,),
        (400,),
        2,
        1,
        dim=104,
        tile_m=128,
        mask="prefixes",
        dtype=torch.float16,
        view=True,
        deterministic=True,
        tuning=WITH_RUNS,
    ),
    "two buffers of dQ": Spec((300, 130), (330, 140), 2, 1, dim=128, tile_m=128, mask="random", deterministic=True),
    # 5 or 3 steps of each tile of keys: the next one begins with the other buffer
    "two buffers of dQ, tiles of 64 queries, packed": Spec(
        (300, 130), (330, 140), 2, 2, dim=128, tile_m=64, deterministic=True, packed=True
    ),
    "two buffers of dQ, none of the step before": Spec(
        (300, 130), (330, 140), 2, 1, dim=128, tile_m=128, deterministic=True, tuning=(("delays", 0), ("stages_dq", 2))
    ),
    "two buffers of dQ, atomic": Spec((300, 130), (330, 140), 2, 2, dim=128, tile_m=64, tuning=(("stages_dq", 2),)),
    "two buffers of dQ, a soft cap": Spec(
        (300, 130), (330, 140), 2, 1, dim=128, tile_m=128, mask="random", softcap=1.5, deterministic=True
    ),
    "one buffer of dQ, as asked": Spec(
        (300, 130), (330, 140), 2, 1, dim=128, tile_m=128, mask="random", deterministic=True, tuning=(("stages_dq", 1),)
    ),
    "no runs, as asked": Spec((700,), (130,), 2, 1, dim=128, tile_m=128, tuning=(("runs", 0),)),
    "no runs with a soft cap": Spec((700,), (130,), 2, 1, dim=128, tile_m=128, softcap=1.5),
    "no keys": Spec((100, 60), (0, 60), dim=64, tile_m=64, mask="causal", packed=True),
}


OF_DAILY = ("band, ordered", "more blocks than the entry buffer holds", "two buffers of dQ", "no keys")


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
    assert bool(products_of(reports[1], "m64n80k16")) == name.startswith("runs of tiles")
    assert (tiling.stages_dq == 2) == name.startswith("two buffers of dQ")
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


# Ranks of the tiles of a run are equal, or descend, or ascend; runs of different CTAs begin at different tiles
ORDERED_RUNS = {
    "full": Spec((1300,), (390,), 2, 1, dim=128, tile_m=128, deterministic=True, tuning=WITH_RUNS),
    "causal": Spec((1200,), (1100,), dim=128, tile_m=128, mask="causal", deterministic=True, tuning=WITH_RUNS),
    "causal, descending": Spec(
        *((1300,), (900,)),
        dim=128,
        tile_m=128,
        mask="causal",
        deterministic=True,
        schedule="descending",
        tuning=WITH_RUNS,
    ),
    "window": Spec(
        *((1400,), (2304,)),  # a third of the keys are seen: five whole tiles
        dim=128,
        tile_m=128,
        mask="window",
        deterministic=True,
        schedule="permutation",
        tuning=WITH_RUNS,
    ),
}


@pytest.mark.parametrize(
    ("name", "order", "slots"),
    [
        nightly_unless(not case.marks and case.values[0].startswith("causal"), *case.values)
        for case in covering(list(ORDERED_RUNS), SCHEDULES, [1, 3, 9], strength=1)
    ],
)
def test_ordered_runs_have_the_same_bits_in_every_schedule(name, order, slots):
    first, reports = checked(ORDERED_RUNS[name])
    assert products_of(reports[1], "m64n80k16")
    again = check(ORDERED_RUNS[name], resident_ctas=slots, warp_schedule=order, seed=slots, dispatch="permuted")
    assert all(torch.equal(x, again[name]) for name, x in first.items())


def in_order_of(spec: Spec, order: list[int]) -> BlockSparse:
    """Blocks of a spec with one head and no mask, each row of whose backward lists is visited in this order."""
    blocks = make(replace(spec, products="wgmma", tile_n=128)).blocks
    full = blocks.backward.full
    index = full.index.clone()
    for begin in full.begin.flatten().tolist():
        index[begin : begin + len(order)] = torch.tensor(order, dtype=torch.int32)
    lists = replace(blocks.backward, full=replace(full, index=index))
    blocks = replace(blocks, backward=lists, merged=False)
    return with_order(blocks) if spec.deterministic else blocks


@pytest.mark.parametrize("deterministic", daily([False, True], [False]))
@pytest.mark.parametrize(
    ("order", "runs"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], 2),
        ([9, 8, 7, 6, 5, 4, 3, 2, 1, 0], 2),
        ([5, 6, 7, 8, 9, 4, 3, 2, 1, 0], 2),
        ([0, 9, 8, 7, 6, 5, 4, 3, 2, 1], 1),
        ([0, 2, 3, 4, 5, 7, 6, 8, 9, 1], 0),
        ([3, 2, 1, 0, 4, 5, 6, 7, 8, 9], 1),
    ],
    ids=str,
)
def test_runs_ascend_or_descend(order, runs, deterministic):
    """Five adjacent tiles take eight steps of 80 queries, any other tile two of 64, of as many products."""
    spec = Spec((1280,), (256,), dim=128, tile_m=128, deterministic=deterministic, tuning=WITH_RUNS)
    problem, out, reports = run(spec, blocks=in_order_of(spec, order))
    assert [(r.status, r.findings) for r in reports] == [("finished", [])] * 3, "\n".join(map(str, reports))
    assert max(errors(problem, out).values()) <= 1
    wide, narrow = (products_of(reports[1], shape) for shape in ("m64n80k16", "m64n64k16"))
    assert wide + narrow and wide * 2 * (10 - 5 * runs) == narrow * 8 * runs


@cute.jit
def _always_open(w, block, group) -> Boolean:
    return Boolean(True)


@cute.jit
def _never_open(w, block, group) -> Boolean:
    return Boolean(False)


@cute.jit
def _release_read(w, block, group) -> None:
    cute.arch.cp_async_bulk_wait_group(0, read=True)
    cute.arch.fence_proxy("async.global")
    release(w, block, group)


def changed(monkeypatch, spec, resident_ctas=9, **functions):
    """`run` with other functions in runs_dq_warps.py, and what the caller has changed."""
    for name, function in functions.items():
        monkeypatch.setattr(runs_dq_warps, name, function)

    def built(of, injection=NO_INJECTION):
        if of.kind != "backward":
            return loaded(of, injection)
        return Emulator(strict=False, checks=ALL_CHECKS).load(build(of, ARCH))

    return run(spec, compiled=built, resident_ctas=resident_ctas, warp_schedule="random", seed=3)


def said_of(reports) -> set[str]:
    """The states in which the kernels ended, and the kinds of what was found."""
    return {r.status for r in reports} | {finding.kind for r in reports for finding in r.findings}


@pytest.mark.nightly
def test_a_step_in_two_tiles_gives_the_same_bits_if_it_waits_for_the_second(monkeypatch):
    """The bits are those of the kernel that adds at once where the second tile's semaphore has its rank."""
    first = check(ORDERED_RUNS["causal"])
    _, again, reports = changed(monkeypatch, ORDERED_RUNS["causal"], is_open=_never_open)
    assert [(r.status, r.findings) for r in reports] == [("finished", [])] * 3, "\n".join(map(str, reports))
    assert all(torch.equal(x, again[name]) for name, x in first.items())


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("bug", "functions"),
    [
        ("the second tile is not acquired", {"is_open": _always_open}),
        ("released when read, not when added", {"release_added": _release_read}),
    ],
)
def test_planted_bugs_of_steps_in_two_tiles_are_seen(bug, functions, monkeypatch):
    *_, reports = changed(monkeypatch, ORDERED_RUNS["causal"], **functions)
    assert any(r.status == "deadlock" or r.findings for r in reports), bug


@cute.jit
def _acquire_one_for_both(w, block, group) -> None:
    if cute.arch.lane_idx() == 0:
        wait(w, block, group * 0)
        cute.arch.fence_proxy("async.global")
    cute.arch.sync_warp()


@cute.jit
def _empty_when_committed(group, later, buffer) -> None:
    cute.arch.sync_warp()
    turns.arrive_dq(DqBarrier.EMPTY, group, buffer)


# bug → (what the emulated GPU says, other function of dq_warps.py)
OF_DQ_WARPS = {
    "both dQ warps wait for the first warpgroup's semaphore": (("race", "deadlock"), "acquire", _acquire_one_for_both),
    "a buffer is said to be empty before it has been read": (("race",), "empty", _empty_when_committed),
}


@pytest.mark.parametrize(
    ("bug", "dim"),
    [nightly_unless(bug == list(OF_DQ_WARPS)[1] and dim == 128, bug, dim) for bug in OF_DQ_WARPS for dim in (64, 128)],
)
def test_planted_bugs_of_dq_warps_are_seen(bug, dim, monkeypatch):
    kinds, name, function = OF_DQ_WARPS[bug]
    monkeypatch.setattr(dq_warps, name, function)
    *_, reports = changed(monkeypatch, replace(ORDERED, dim=dim))
    assert any(said.startswith(kinds) for said in said_of(reports)), said_of(reports)


def _the_first(w, step) -> Int32:
    return Int32(0)


@cute.jit
def _add_other(w, step, group, buffer) -> None:
    ADD_SHARE(w, step, group, 1 - buffer)


@cute.jit
def _add_from_first(w, group, before) -> Int32:
    return dq_warps.add_steps_in_order(w, group, Int32(0))


@cute.jit
def _at_once(which, group, buffer) -> None:
    pass


@cute.jit
def _arrive_when_empty(which, group, buffer) -> None:
    turns.await_dq(DqBarrier.EMPTY, group, buffer)
    turns.arrive_dq(which, group, buffer)


@cute.jit
def _offer_first(w, group) -> None:
    turns.arrive_dq(DqBarrier.EMPTY, group)


ADD_SHARE = dq_warps.add_share
# bug → (what the emulated GPU says; where the bug is; other functions there, "turns": as that module sees turns.py)
OF_BUFFERS = {
    "a buffer is written before it is empty": (
        *("race", mainloop),
        {"turns": {"await_dq": _at_once, "arrive_dq": _arrive_when_empty}},
    ),
    "the dQ warps count each tile's steps from its first one": (
        *("deadlock", kernel.TransposedBackward),
        {"add_dq_in_order": staticmethod(_add_from_first)},
    ),
    "the dQ warps add what is in the other buffer": ("race", dq_warps, {"add_share": _add_other}),
    "the dQ warps have the first buffer alone": ("deadlock", dq_warps, {"turns": {"buffer_of": _the_first}}),
    "the multiplying warps have the first buffer alone": ("deadlock", mainloop, {"turns": {"buffer_of": _the_first}}),
    "one buffer of two is offered": ("deadlock", kernel, {"turns": {"offer_dq": _offer_first}}),
}


@pytest.mark.parametrize("bug", daily(list(OF_BUFFERS), list(OF_BUFFERS)[:1]))
def test_planted_bugs_of_two_buffers_of_dq_are_seen(bug, monkeypatch):
    kind, where, others = OF_BUFFERS[bug]
    for name, other in others.items():
        seen = SimpleNamespace(**vars(turns) | other) if name == "turns" else other
        monkeypatch.setattr(where, name, seen)
    *_, reports = changed(monkeypatch, SPECS["two buffers of dQ, tiles of 64 queries, packed"], resident_ctas=3)
    assert any(said.startswith(kind) for said in said_of(reports)), said_of(reports)


@cute.jit
def _keys_at_once(w, sides, entry, part) -> None:
    if (entry == w.first_entry) & (part == 0):
        for side in cutlass.range_constexpr(len(sides)):
            _, _, keys, _, _, key_tile, _, _, key_full = loads.transfer_of(w, sides[side])
            loads.load_keys(w, keys, key_tile, w.head_kv, w.row, key_full)


@cute.jit
def _keys_ended_early(w, products, step, last) -> None:
    turns.end_keys(w, last)
    rdQ = mainloop.accumulator(products.to_dq)
    mainloop.issue_dq(w, products, rdQ, step)
    mainloop.finish()
    turns.arrive_empty(w.ds_empty, step, w.tiling.stages_ds)
    mainloop.hand_over_dq(w, rdQ, step)


@cute.jit
def _windows_at_once(w, look_up) -> None:
    for number in cutlass.range(tile_scheduler.windows_of(w.end_entry - w.first_entry), unroll=1):
        first = w.first_entry + number * HALF
        look_up(w, first)
        cute.arch.sync_warp()
        if cute.arch.lane_idx() == 0:
            cute.arch.mbarrier_arrive(w.entries_full + turns.window_of(first) % 2)


@cute.jit
def _goes_on() -> None:
    pass


FEW_BLOCKS = Spec((130,), (900,), 2, 2, tile_m=64, mask="window")
MANY_BLOCKS = Spec((64 * 70,), (130,), 2, 1, tile_m=64, group_split=1)


@pytest.mark.parametrize(
    ("bug", "where", "name", "function", "dim"),
    [
        nightly_unless(one[-2:] == (_windows_at_once, 128), *one)
        for one in (
            ("K and V are loaded over those of the tile before", loads, "load_keys_behind", _keys_at_once, 64),
            ("K and V are loaded over those of the tile before", loads, "load_keys_behind", _keys_at_once, 128),
            ("K is loaded over that of the last dQ's product", mainloop, "finish_dq", _keys_ended_early, 64),
            ("entries are written over those that are read", tile_scheduler, "write_windows", _windows_at_once, 64),
            ("entries are written over those that are read", tile_scheduler, "write_windows", _windows_at_once, 128),
            # at head dim 64 a warp's rows of dK lie where no other warp writes dS
            ("dS is written over dK that is stored", kernel, "sync_multiplying", _goes_on, 128),
        )
    ],
)
def test_planted_bugs_between_tiles_are_seen(bug, where, name, function, dim, monkeypatch):
    spec = replace(MANY_BLOCKS if function is _windows_at_once else FEW_BLOCKS, dim=dim)
    monkeypatch.setattr(where, name, function)
    *_, reports = changed(monkeypatch, spec, resident_ctas=1)
    assert any(r.status == "deadlock" or r.findings for r in reports), bug


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


OF_SHARED_DS = {
    "dQ is multiplied before the other warpgroup has written its dS": "ds_full",
    "dS is written over one that the other warpgroup multiplies": "ds_empty",
}


@pytest.mark.parametrize(
    ("bug", "name"),
    [
        nightly_unless(not case.marks and case.values[1] == "full", *case.values)
        for case in covering(list(OF_SHARED_DS), ["full", "runs of tiles, causal", "band, ordered"], strength=1)
    ],
)
def test_planted_bugs_of_shared_ds_are_seen(bug, name, monkeypatch):
    """The barrier's phase ends when half of the warps have arrived."""
    table, barrier = turns.barrier_table, OF_SHARED_DS[bug]

    def halved(tiling):
        count, arrivals = table(tiling)[barrier]
        return table(tiling) | {barrier: (count, arrivals // 2)}

    monkeypatch.setattr(turns, "barrier_table", halved)
    *_, reports = changed(monkeypatch, SPECS[name])
    assert any(r.status == "deadlock" or r.findings for r in reports), bug


ORDERED = Spec((300, 130), (300, 140), 2, 1, dim=128, tile_m=128, mask="random", deterministic=True)
CAPPED = Spec((300,), (300,), 2, 1, dim=64, tile_m=128, mask="causal", softcap=1.5)


RUNS = Spec((900,), (770,), 2, 1, dim=128, tile_m=128, mask="causal", group_split=1)


def bugs():
    """Mutants of the backward kernel that this loop has the injection points of. The lock of ranks_of_one_cta is that
    of a CTA with a rank of its own, as here."""
    tuned = variant()
    points = set(type(_kernel(tuned)).INJECTION_POINTS)
    for name in MUTANTS:
        replaced = replaced_by(name)
        if replaced and replaced <= points and name not in ("lock_is_n_block", "ranks_of_one_cta"):
            yield name


ORDER = {"lock_of", "is_first", "wait", "release", "ended_step", "semaphore"}  # of ordered adds alone


def replaced_by(name):
    """The injection points of a mutant in the backward kernel."""
    return set(MUTANTS[name].injection.backward.replacements) - {*OF_PREPROCESS, *OF_POSTPROCESS}


def _kernel(of):
    from kernels.blocksparse.backward.transposed.kernel import TransposedBackward

    return TransposedBackward(of, ARCH)


# What the daily run tries; `make score` tries one kernel's mutants too
BUGS_OF_DAILY = ("barrier_before_reuse_missing",)


@pytest.mark.parametrize("name", daily(list(bugs()), BUGS_OF_DAILY))
def test_planted_bugs_are_seen(name):
    """By a finding, a deadlock or wrong gradients; unordered adds are a finding."""
    injection = MUTANTS[name].injection.backward
    spec = CAPPED if "softcap" in name else ORDERED
    problem, out, reports = run(spec, injection, warp_schedule="random", seed=3)
    ended = all(r.status == "finished" and not r.findings for r in reports)
    assert not ended or max(errors(problem, out).values()) > 1


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in bugs() if not ORDER & replaced_by(name)])
def test_planted_bugs_are_seen_with_runs(name):
    """Likewise; adds are in any order."""
    spec = CAPPED if "softcap" in name else RUNS
    problem, out, reports = run(spec, MUTANTS[name].injection.backward, warp_schedule="random", seed=3)
    ended = all(r.status == "finished" and not r.findings for r in reports)
    assert not ended or max(errors(problem, out).values()) > 1


@pytest.mark.nightly
@pytest.mark.parametrize("name", [*(name for name in bugs() if ORDER & replaced_by(name)), "lock_is_n_block"])
def test_planted_bugs_of_ordered_adds_are_seen_with_runs(name):
    spec, injection = ORDERED_RUNS["window" if name == "lock_is_n_block" else "full"], MUTANTS[name].injection.backward
    problem, out, reports = run(spec, injection, resident_ctas=9, warp_schedule="random", seed=3)
    # a stored share that is lost is no finding
    assert any(r.status == "deadlock" or r.findings for r in reports) or max(errors(problem, out).values()) > 1


def test_a_dq_warp_that_waits_forever_is_named():
    _, _, reports = run(replace(ORDERED, mask="window"), MUTANTS["lock_is_n_block"].injection.backward)
    assert [r.status for r in reports] == ["finished", "deadlock"]
    said = str(reports[-1])
    assert re.search(r"warp [12] waits for semaphores\[[01], [01], [01], [0-2]\] = \d to become \d", said), said
