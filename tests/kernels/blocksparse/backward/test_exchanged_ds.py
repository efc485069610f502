"""Hopper's backward kernel whose CTAs form pairs, have the halves of a tile of keys and exchange dS: what it computes
on the emulated GPU with all of its checks, when the launcher takes it, and what planted bugs do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")
pytest.importorskip("llvmlite")

from backward_problems import Spec, errors, make
from blocksparse_runs import gradients
from covering import daily, nightly_unless
from cutlass import cute

from fuzz.devices.emulator import Emulator
from fuzz.devices.emulator.config import ALL_CHECKS
from kernels.blocksparse.backward import dq_accumulator
from kernels.blocksparse.backward.by_gradient import exchange, exchanging_mainloop, mainloop
from kernels.blocksparse.backward.tiling import SHARED_MEMORY, THREADS, choose_tiling
from kernels.blocksparse.backward.transposed import turns
from kernels.blocksparse.backward.wgmma import WARPGROUP
from kernels.blocksparse.common.bulk import send_run
from kernels.blocksparse.launch.backward import backward_variants
from kernels.blocksparse.launch.by_length import order_of_keys
from kernels.blocksparse.lists.halves import halve_keys
from kernels.blocksparse.lists.schedule import permutation
from kernels.blocksparse.lists.write_order import with_order
from kernels.blocksparse.spec.variant import Variant

ARCH = "sm_90a"
SHAPE: dict[str, Any] = {"tile_m": 128, "tile_n": 128, "products": "wgmma"}
FINISHED = ("finished", [])
CHECKS = ALL_CHECKS - {"unordered_adds"}


def problem_of(lens_q: Any, lens_k: Any, *heads: int, dim: int = 192, **options: Any) -> Any:
    """A problem over halves of tiles of 128 keys."""
    problem = make(Spec(lens_q, lens_k, *heads, **{**SHAPE, "dim": dim, **options}))
    return replace(problem, blocks=halve_keys(problem.blocks, torch.tensor(lens_k)))


def run(problem: Any, **emulated: Any) -> Any:
    """(gradients, reports). Where adds are not ordered, their order is no finding."""
    checks = ALL_CHECKS if problem.spec.deterministic else CHECKS
    return gradients(problem, Emulator(**{"resident_ctas": 4, "checks": checks, **emulated}), ARCH)


def check(problem: Any, **emulated: Any) -> dict[str, torch.Tensor]:
    """The gradients, which are right, of a kernel that exchanges dS, and nothing was found."""
    assert exchanges(problem)
    out, reports = run(problem, **emulated)
    assert [(r.status, r.findings) for r in reports] == [FINISHED] * len(reports), "\n".join(map(str, reports))
    found = errors(problem, out)
    assert max(found.values()) <= 1, found
    return out


def exchanges(problem: Any) -> bool:
    """True where the launcher's backward kernel exchanges dS."""
    spec = problem.spec
    variants = backward_variants(
        problem.operands["q"],
        problem.blocks,
        spec.softcap,
        spec.deterministic,
        spec.tuning,
        "wgmma",
        spec.float32,
        False,
    )
    main = next(v for v in variants if v.kind == "backward")
    return main.products == "wgmma" and choose_tiling(main, ARCH).exchanges


CASES = {
    "full": ((256,), (256,), {}),
    "causal, head dim 160": ((300,), (250,), {"mask": "causal", "dim": 160}),
    "window, head dim 144": ((256,), (256,), {"mask": "window", "dim": 144}),
    "documents": ((256,), (256,), {"mask": "documents", "dim": 168}),
    "no second half": ((200,), (60,), {}),
    "three halves": ((200,), (180,), {"mask": "causal"}),
    "ragged": ((256, 130, 40), (250, 60, 140), {"mask": "causal"}),
    "ragged, descending": ((130, 256), (140, 330), {"mask": "causal", "schedule": "descending"}),
    "grouped heads": ((130,), (200,), {"heads": (4, 2), "dim": 176}),
    "units with sums of their own": ((130,), (180,), {"heads": (4, 2), "group_split": 2}),
    "steps of tiles of 64 queries": ((200,), (200,), {"tile_m": 64}),
    "float32 gradients of slices": ((200,), (180,), {"float32": True, "view": True}),
    "float16": ((200,), (180,), {"dtype": torch.float16}),
    "packed": ((130, 0, 256, 40), (60, 30, 330, 250), {"packed": True, "mask": "causal"}),
    "packed, one without keys": ((130, 200, 70), (190, 0, 64), {"packed": True}),
    "packed, descending": ((130, 256), (60, 450), {"packed": True, "mask": "causal", "schedule": "descending"}),
    "packed, planned": ((130, 256), (60, 450), {"packed": True, "mask": "causal", "schedule": "permutation"}),
    "packed, grouped heads": ((130, 100), (60, 300), {"packed": True, "heads": (4, 2), "group_split": 2}),
    "packed, as they come": ((130, 256), (200, 240), {"packed": True, "mask": "causal", "dim": 256}),
    "packed, head dim 256": ((130, 10, 256), (60, 20, 330), {"packed": True, "mask": "window", "dim": 256}),
    "full, head dim 256": ((256,), (256,), {"dim": 256}),
    "causal, head dim 256": ((300,), (250,), {"mask": "causal", "dim": 256}),
    "ragged, head dim 256": ((256, 130, 40), (250, 60, 140), {"mask": "causal", "dim": 256}),
    "descending, head dim 256": ((130, 256), (140, 330), {"mask": "causal", "schedule": "descending", "dim": 256}),
    "window, head dim 224": ((256,), (256,), {"mask": "window", "dim": 224}),
    "documents, head dim 232": ((256,), (256,), {"mask": "documents", "dim": 232}),
    "no second half, head dim 248": ((200,), (60,), {"dim": 248}),
    "grouped heads, head dim 256": ((130,), (200,), {"heads": (4, 2), "dim": 256}),
    "units with sums of their own, head dim 256": ((130,), (180,), {"heads": (4, 2), "group_split": 2, "dim": 256}),
    "steps of tiles of 64 queries, head dim 256": ((200,), (200,), {"tile_m": 64, "dim": 256}),
    "float32 gradients of slices, head dim 256": ((200,), (180,), {"float32": True, "view": True, "dim": 256}),
}
DAILY = {  # with ordered adds or without
    "ragged": True,
    "three halves": True,
    "causal, head dim 160": False,
    "units with sums of their own": False,
    "packed": True,
    "packed, head dim 256": False,
    "full, head dim 256": False,
    "ragged, head dim 256": True,
}


@pytest.mark.parametrize(
    ("name", "deterministic"),
    [nightly_unless(DAILY.get(name) == ordered, name, ordered) for name in CASES for ordered in (False, True)],
)
def test_gradients_are_right_and_nothing_is_found(name, deterministic):
    lens_q, lens_k, options = CASES[name]
    heads = options.pop("heads", ()) if "heads" in (options := dict(options)) else ()
    problem = problem_of(lens_q, lens_k, *heads, deterministic=deterministic, **options)
    schedule = ["random", "oldest_last", "greedy", "in_order"][len(name) % 4]
    check(problem, warp_schedule=schedule, seed=len(name))


@pytest.mark.parametrize("deterministic", [nightly_unless(False, ordered) for ordered in (False, True)])
def test_head_dim_208(deterministic):
    """Whose atomic adds the launcher has without an exchange."""
    tuning = (("depth", 208), ("exchanges", 1))
    problem = problem_of((300,), (250,), mask="causal", dim=208, deterministic=deterministic, tuning=tuning)
    check(problem, warp_schedule="random", seed=8)


@pytest.mark.parametrize("dim", [192, nightly_unless(False, 256)])
@pytest.mark.parametrize("schedule", ["ascending", nightly_unless(False, "descending")])
def test_ordered_gradients_have_the_same_bits_in_every_schedule(schedule, dim):
    problem = problem_of((256,), (330,), mask="causal", deterministic=True, schedule=schedule, dim=dim)
    first = check(problem, warp_schedule="in_order")
    for seed, warps in enumerate(("random", "oldest_last")):
        again = check(problem, warp_schedule=warps, seed=seed, resident_ctas=2)
        assert all(torch.equal(first[name], again[name]) for name in first)


@pytest.mark.nightly
def test_planned_orders_and_reversed_groups_have_the_same_bits():
    """Under a permutation, where a tile may have one half alone, and in a reversed group."""
    reversed_group = {"schedule": "permutation", "reverses": True, "pairs": 1}
    for options in ({"schedule": "permutation"}, reversed_group, {**reversed_group, "dim": 256}):
        problem = problem_of((256, 256), (450, 450), mask="causal", deterministic=True, **options)
        first = check(problem, warp_schedule="in_order")
        again = check(problem, warp_schedule="random", seed=5, resident_ctas=2)
        assert all(torch.equal(first[name], again[name]) for name in first)


@pytest.mark.nightly
@pytest.mark.parametrize("deterministic", [False, True])
def test_packed_sequences_by_length_under_a_planned_order(deterministic):
    """Whose positions have a sequence's own tiles before those past its end."""
    lens_q, lens_k = (130, 300), (60, 450)
    problem = make(Spec(lens_q, lens_k, **SHAPE, dim=192, packed=True, mask="causal", deterministic=deterministic))
    planned = replace(permutation(problem.blocks.lpt.columns), own_first=True)
    blocks = with_order(replace(problem.blocks, schedule=planned, order=None))
    problem = replace(problem, blocks=halve_keys(blocks, torch.tensor(lens_k)))
    assert order_of_keys(problem.operands["k"], problem.blocks) is not None
    check(problem, warp_schedule="random", seed=9)


def test_the_launcher_takes_it_where_both_halves_of_tiles_have_the_same_blocks():
    assert exchanges(problem_of((128,), (128,), dim=136))
    assert exchanges(problem_of((128,), (128,), mask="documents"))
    assert exchanges(problem_of((128,), (128,), packed=True))
    assert exchanges(problem_of((128,), (128,), dim=256))
    assert exchanges(problem_of((128,), (128,), dim=208, deterministic=True))
    assert not exchanges(problem_of((128,), (128,), dim=208))
    assert not exchanges(problem_of((128,), (128,), dim=256, softcap=5.0))
    assert not exchanges(problem_of((128,), (128,), mask="random"))
    assert not exchanges(problem_of((128,), (128,), softcap=5.0))
    assert not exchanges(make(Spec((128,), (128,), **{**SHAPE, "dim": 192, "tile_n": 64})))


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("depth", range(144, 257, 16))
def test_its_shared_memory_is_what_an_sm_has(depth, deterministic):
    tiling = choose_tiling(variant(depth, deterministic), ARCH)
    assert tiling.exchanges and tiling.held_columns == (96 if depth <= 192 else 64)
    assert tiling.shared_bytes <= SHARED_MEMORY[90]


@pytest.mark.parametrize(
    ("wrong", "changed"),
    [
        ("depth", {"tuning": (("depth", 128), ("exchanges", 1))}),
        ("soft cap", {"softcap": True}),
        ("0 or 1", {"tuning": (("depth", 192), ("exchanges", 2))}),
        ("tiles of 64 keys", {"tile_n": 128, "dim_padded": 128, "tuning": (("exchanges", 1),)}),
    ],
)
def test_other_kernels_do_not_exchange(wrong, changed):
    with pytest.raises(ValueError, match=f"exchanges .*{wrong}"):
        choose_tiling(replace(variant(192), **changed), ARCH)


@pytest.mark.parametrize(
    "options", [{"mask": "random"}, {"mask": "random", "packed": True}, {"schedule": "permutation", "mask": "random"}]
)
def test_lists_without_halves_are_refused(options):
    """Where a caller gives the tuning."""
    with pytest.raises(ValueError, match="tuning: exchanges needs lists and a schedule"):
        run(problem_of((128,), (128,), tuning=(("depth", 192), ("exchanges", 1)), **options))


def variant(depth: int, deterministic: bool = False) -> Variant:
    tuning = (("depth", depth), ("exchanges", 1))
    return Variant("backward", "bfloat16", 256, 128, 64, "none", deterministic, products="wgmma", tuning=tuning)


@cute.jit
def _await_nothing(w, step) -> None:
    pass


@cute.jit
def _tell_nobody(w) -> None:
    pass


@cute.jit
def _send_keys_early(w) -> None:
    peer = 1 - w.rank
    if (w.total > 0) & (cute.arch.lane_idx() == 0):
        target = cute.arch.map_dsmem_ptr(w.storage.plainPeerK.iterator, peer)
        full = cute.arch.map_dsmem_ptr(w.peer_keys_full, peer)
        send_run(target, w.storage.plainK.iterator, exchange.bytes_of_keys(w.tiling), full)


@cute.jit
def _send_own_columns(w) -> None:
    """The peer gets the columns that this CTA multiplies."""
    peer, atom = 1 - w.rank, exchange.ATOM * w.tiling.tile_n
    if w.total > 0:
        cute.arch.mbarrier_wait(w.k_full, 0)
        if cute.arch.lane_idx() == 0:
            source = w.storage.plainK.iterator + cute.assume(w.rank * atom, divby=atom)
            target = cute.arch.map_dsmem_ptr(w.storage.plainPeerK.iterator, peer)
            full = cute.arch.map_dsmem_ptr(w.peer_keys_full, peer)
            send_run(target, source, exchange.bytes_of_keys(w.tiling), full)
        cute.arch.sync_warp()


@cute.jit
def _give_p_and_wait(w, rP: cute.Tensor) -> None:
    """`mainloop.give_p`, but the warpgroup waits for its dQ warp when it has written P, not before."""
    here, there = dq_accumulator.fragment_views(rP, mainloop.p_of_thread(w), WARPGROUP, mainloop.VECTOR)
    cute.autovec_copy(here, there)
    turns.await_dq(turns.DqBarrier.EMPTY, w.group)
    cute.arch.barrier_arrive(barrier_id=int(mainloop.Barrier.P), number_of_threads=THREADS)


# bug → (what is seen, the function of exchange.py, what it does instead)
BUGS: dict[str, tuple[str, str, Any]] = {
    "dS is sent before the peer has read the last one": ("race", "await_leave", _await_nothing),
    "dQ is multiplied before the peer's dS has come": ("race", "await_ds", _await_nothing),
    "dQ is multiplied before the peer's K has come": ("race", "await_keys", _tell_nobody),
    "K is sent before it is there": ("race", "send_keys", _send_keys_early),
    "the peer is never told that it may send": ("deadlock", "let_send", _tell_nobody),
    "the peer gets other columns of K": ("wrong", "send_keys", _send_own_columns),
}


@pytest.mark.parametrize("dim", [192, nightly_unless(False, 256)])
@pytest.mark.parametrize("bug", daily(list(BUGS), list(BUGS)[:2]))
def test_planted_bugs_are_seen(bug, dim, monkeypatch):
    kind, name, other = BUGS[bug]
    monkeypatch.setattr(exchange, name, other)
    assert kind in seen(problem_of((256,), (128,), dim=dim))


@pytest.mark.nightly
def test_p_written_over_dq_that_is_not_read_yet_is_seen(monkeypatch):
    """Beyond head dim 192, where both have one buffer."""
    monkeypatch.setattr(exchanging_mainloop, "give_p", _give_p_and_wait)
    assert "race" in seen(problem_of((256,), (128,), dim=256))


def seen(problem: Any) -> set[str]:
    """What a run shows of the backward kernel, with functions that a test has replaced: how launches ended, the first
    words of what was found ("race", "deadlock"), and "wrong" where dQ is."""
    emulator = Emulator(resident_ctas=4, checks=CHECKS, warp_schedule="random", seed=3)
    out, reports = gradients(problem, emulator, ARCH, anew="backward")
    said = {r.status for r in reports} | {finding.kind.split(":")[0] for r in reports for finding in r.findings}
    return said | {"wrong"} if said == {"finished"} and errors(problem, out)["dq"] > 1 else said
