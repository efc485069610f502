"""Planted bugs of the transposed main loop of Hopper's backward kernel: the emulated GPU sees each."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("cutlass")
pytest.importorskip("llvmlite")

import cutlass
from backward_problems import Spec, errors
from covering import covering, daily, nightly_unless
from cutlass import Int32, cute
from transposed_backward import ARCH, loaded, run, variant
from transposed_specs import ORDERED_RUNS, SPECS

from fuzz.devices.emulator import Emulator
from fuzz.devices.emulator.config import ALL_CHECKS
from kernels.blocksparse.backward.mainloop_mma import release, wait
from kernels.blocksparse.backward.tiling import HALF
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
from kernels.blocksparse.spec.variant import NO_INJECTION, OF_POSTPROCESS, OF_PREPROCESS
from kernels.mutants.blocksparse.table import MUTANTS


def changed(spec, resident_ctas=9):
    """`run` with what the caller has changed in the kernel's modules."""

    def built(of, injection=NO_INJECTION):
        if of.kind != "backward":
            return loaded(of, injection)
        return Emulator(strict=False, checks=ALL_CHECKS).load(build(of, ARCH))

    return run(spec, compiled=built, resident_ctas=resident_ctas, warp_schedule="random", seed=3)


def said_of(reports) -> set[str]:
    """The states in which the kernels ended, and the kinds of what was found."""
    return {r.status for r in reports} | {finding.kind for r in reports for finding in r.findings}


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
    *_, reports = changed(replace(ORDERED, dim=dim))
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


@pytest.mark.nightly
@pytest.mark.parametrize("bug", list(OF_BUFFERS))
def test_planted_bugs_of_two_buffers_of_dq_are_seen(bug, monkeypatch):
    check_seen(monkeypatch, SPECS["two buffers of dQ, tiles of 64 queries, packed"], *OF_BUFFERS[bug])


def check_seen(monkeypatch, spec, kind, where, others) -> None:
    """The emulated GPU says a kind of finding of the kernel with other functions in the module or class `where`."""
    for name, other in others.items():
        seen = SimpleNamespace(**vars(turns) | other) if name == "turns" else other
        monkeypatch.setattr(where, name, seen)
    *_, reports = changed(spec, resident_ctas=3)
    assert any(said.startswith(kind) for said in said_of(reports)), said_of(reports)


@cute.jit
def _never_acquire(w, entry, part, released) -> None:
    cute.arch.sync_warp()


@cute.jit
def _hand_on_when_read(w, entry, part, following, following_part, follows) -> None:
    cute.arch.cp_async_bulk_wait_group(0, read=True)
    if cute.arch.lane_idx() == 0:
        block, of_tile = runs_dq_warps.block_of(w, entry, part), runs_dq_warps.semaphore_part(w, entry, part)
        release(w, block, of_tile)
    cute.arch.sync_warp()
    if follows:
        runs_dq_warps.acquire(w, following, following_part, cutlass.Boolean(False))


def _of_first_step(w, entry, part) -> Int32:
    return Int32(0)


@cute.jit
def _window_at_once(w, entry) -> None:
    pass


# bug → (what the emulated GPU says; where the bug is; other functions there, "turns": as that module sees turns.py)
OF_TURNS = {
    "a step is added before it is acquired": ("race", runs_dq_warps, {"acquire": _never_acquire}),
    "a step is released when it has been read": (
        ("race", "unordered_adds"),
        runs_dq_warps,
        {"hand_on": _hand_on_when_read},
    ),
    "the steps that begin in a tile have one semaphore": (
        "deadlock",
        runs_dq_warps,
        {"semaphore_part": _of_first_step},
    ),
    "all steps are the first dQ warp's": ("deadlock", mainloop, {"turns": {"turn_of": _the_first}}),
    "a window is read before it is written": ("race", runs_dq_warps, {"turns": {"await_window": _window_at_once}}),
}


@pytest.mark.parametrize("bug", daily(list(OF_TURNS), ["all steps are the first dQ warp's"]))
def test_planted_bugs_of_ordered_runs_are_seen(bug, monkeypatch):
    check_seen(monkeypatch, ORDERED_RUNS["runs of tiles, ordered, three windows of pieces"], *OF_TURNS[bug])


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
    *_, reports = changed(spec, resident_ctas=1)
    assert any(r.status == "deadlock" or r.findings for r in reports), bug


@cute.jit
def _issue_and_end_keys(w, products, rdQ, step) -> None:
    ISSUE_DQ(w, products, rdQ, step)
    turns.arrive_empty(w.keys_empty, w.key_turn, 1)


@cute.jit
def _nothing_ends(w, last) -> None:
    pass


ISSUE_DQ = mainloop.issue_dq
ONE_STEP = Spec((64,), (900,), 2, 2, dim=128, tile_m=64)  # of each tile of keys, whose dQ it computes itself


@pytest.mark.nightly
def test_keys_that_end_when_a_step_s_own_dq_is_issued_are_seen(monkeypatch):
    """The next tile's K is loaded over that which the product still reads."""
    monkeypatch.setattr(mainloop, "issue_dq", _issue_and_end_keys)
    monkeypatch.setattr(mainloop, "turns", SimpleNamespace(**vars(turns) | {"end_keys": _nothing_ends}))
    *_, reports = changed(ONE_STEP, resident_ctas=1)
    assert any(said.startswith("race") for said in said_of(reports)), said_of(reports)


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
    *_, reports = changed(SPECS[name])
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
    """The lock of lock_is_n_block is the right one where every tile of keys adds, and tiles are launched in order."""
    injection = MUTANTS[name].injection.backward
    spec = ORDERED_RUNS["runs of tiles, ordered"]
    problem, out, reports = run(spec, injection, resident_ctas=9, warp_schedule="random", seed=3)
    ended = all(r.status == "finished" and not r.findings for r in reports)
    right = ended and max(errors(problem, out).values()) <= 1
    assert right == (name == "lock_is_n_block")


def test_a_dq_warp_that_waits_forever_is_named():
    _, _, reports = run(replace(ORDERED, mask="window"), MUTANTS["lock_is_n_block"].injection.backward)
    assert [r.status for r in reports] == ["finished", "deadlock"]
    said = str(reports[-1])
    assert re.search(r"warp [12] waits for semaphores\[[01], [01], [01], [0-2]\] = \d to become \d", said), said
