"""Clusters of two CTAs of Hopper's forward kernel, which load K and V for each other: where they are chosen, what they
compute, and that the emulated GPU finds what is wrong with them."""

from dataclasses import replace

import pytest
import torch
from blocksparse_runs import DEVICE, HOPPER, loaded, ptx_of, run_forward
from covering import nightly_unless
from forward_cases import Case, errors, problem, tuning_of

pytest.importorskip("cutlass")

from cutlass import cute

from fuzz.devices.emulator import EmulationError, Emulator
from kernels.blocksparse.launch import forward as launch
from kernels.blocksparse.lists.bands import band
from kernels.blocksparse.lists.builder import dense
from kernels.blocksparse.lists.schedule import ASCENDING
from kernels.blocksparse.spec.signature import ordered
from kernels.blocksparse.spec.variant import NO_INJECTION, Injection, Variant

CLUSTERED = (("cluster", 2), ("turns", 0))
SHORT = Case((300,), (384,), 2, 1, dim=128, tile_m=128, tile_n=128, products="wgmma", tuning=(("cluster", 2),))


def test_full_masks_have_clusters_where_they_are_faster():
    for tokens, dim in ((256, 128), (2048, 128), (2048, 120), (8192, 256), (31 * 128 + 1, 128), (33 * 128, 128)):
        assert tuning_of(tokens, dim)["cluster"] == 2, (tokens, dim)
    for tokens, dim in ((128, 128), (384, 128), (31 * 128, 128), (2048, 64), (2048, 96), (2048, 192)):
        assert "cluster" not in tuning_of(tokens, dim), (tokens, dim)
    assert "cluster" not in tuning_of(2048, packed=True)
    assert "cluster" not in tuning_of(2048, tile_m=64)
    assert "cluster" not in tuning_of(2048, products="mma")


def test_at_head_dim_96_launches_of_many_tiles_have_clusters_without_split_tiles():
    lists = dense(8192, 8192)
    for batch, heads, dim, clustered in ((1, 16, 96, True), (2, 8, 72, True), (1, 15, 96, False), (2, 16, 64, False)):
        q = torch.empty(batch, 8192, heads, dim, dtype=torch.bfloat16, device="meta")
        tuning = dict(launch.forward_variant(q, lists, products="wgmma").tuning)
        assert tuning.pop("depth", 96) == (80 if dim == 72 else 96)
        assert tuning == ({"cluster": 2} if clustered else {"splits": 1}), (batch, heads, dim)


def test_clusters_at_head_dim_160_take_no_turns():
    assert tuning_of(2048, 160) == {"cluster": 2, "splits": 1, "turns": 0}
    single, clustered = (Variant("forward", "bfloat16", 160, products="wgmma", tuning=of) for of in ((), CLUSTERED))
    assert (launch.forward_tuning(single).turns, launch.forward_tuning(clustered).turns) == (1, 0)


def test_other_masks_and_sequences_of_unequal_lengths_have_none():
    assert "cluster" not in tuning_of(2048, blocks=band(2048, 2048, left=None, right=0))
    assert tuning_of(2048, blocks=dense(2048, 2048, schedule=ASCENDING))["cluster"] == 2
    assert "cluster" not in tuning_of(2048, blocks=dense([2048, 1024], [2048, 2048]))


def test_without_tensor_maps_there_are_no_clusters():
    """Tensors with strides too large for TMA are loaded by each CTA for itself."""
    clustered = Variant("forward", "bfloat16", 128, tile_m=128, products="wgmma", tuning=(("cluster", 2),))
    far = torch.empty_strided((2, 10, 1, 64), (1 << 39, 64, 64, 1), dtype=torch.bfloat16, device="meta")
    assert launch.for_operands(clustered, far, far, far).tuning == (("tma", 0),)
    with pytest.raises(ValueError, match="cluster must be 1 or, with tma, 2"):
        launch.forward_tuning(clustered.with_tuning(tma=0))


def test_loads_go_to_both_ctas_and_arrivals_need_no_fence_of_the_gpu():
    ptx = ptx_of(problem(SHORT).variant, "sm_90a")
    assert "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster" in ptx
    assert "mapa.shared::cluster" in ptx and "arrive.release.cluster" not in ptx


@pytest.mark.parametrize(
    ("length_q", "length_k", "resident", "more"),
    [
        (300, 384, None, {}),  # the last pair has one tile
        nightly_unless(HOPPER, 500, 300, 2, {"softcap": 20.0}),  # one cluster for all tiles; keys end inside a block
        nightly_unless(HOPPER, 256, 640, 4, {"dtype": torch.float16, "heads_kv": 2}),
        nightly_unless(HOPPER, 100, 600, 2, {}),  # no second tile at all
        nightly_unless(HOPPER, 700, 129, 4, {"dim": 120, "view": True}),
        nightly_unless(HOPPER, 300, 200, 2, {"dim": 256}),
        nightly_unless(HOPPER, 500, 300, 2, {"dim": 72}),
        nightly_unless(HOPPER, 520, 256, 2, {"dim": 64, "tile_m": 192}),
    ],
)
def test_results_are_those_of_single_ctas(length_q, length_k, resident, more):
    case = replace(SHORT, lengths_q=(length_q,) * 2, lengths_k=(length_k,) * 2, **more)
    clustered, single = problem(case, DEVICE), problem(replace(case, tuning=(("cluster", 1),)), DEVICE)
    run_forward(clustered, NO_INJECTION, "sm_90a", resident=resident)
    run_forward(single, NO_INJECTION, "sm_90a")
    assert max(errors(clustered)) <= 1
    assert torch.equal(clustered.o, single.o) and torch.equal(clustered.lse, single.lse)


def test_sequences_of_other_lengths_are_right():
    """A launcher takes no clusters for them. Pairs without any query are passed over, and so is a second tile without
    queries."""
    case = replace(SHORT, lengths_q=(300, 0, 128, 1), lengths_k=(100, 50, 0, 300))
    p = problem(case, DEVICE)
    run_forward(p, NO_INJECTION, "sm_90a", resident=2)
    assert max(errors(p)) <= 1, errors(p)


@pytest.mark.parametrize("seed", [nightly_unless(seed < 2, seed) for seed in range(12)])
def test_any_schedule_of_warps_of_the_emulated_gpu_gives_the_same_bits(seed):
    p = problem(SHORT)
    run_forward(p, NO_INJECTION, "sm_90a")
    first = p.o.clone()
    p.o.fill_(torch.nan)
    emulator = Emulator(resident_ctas=4, warp_schedule="random", seed=seed, dispatch="permuted")
    values = ordered("forward", p.values(resident=4))
    assert loaded(p.variant, "sm_90a")(*values, emulator=emulator).status == "finished"
    assert torch.equal(p.o, first)


@cute.jit
def _of_the_cta(cluster):
    cute.arch.sync_threads()


@cute.jit
def _at_once(*arguments):
    pass


@pytest.mark.parametrize(
    ("point", "replacement"),
    [
        ("meet_at_start", _of_the_cta),  # a CTA arrives at barriers that the other one has not initialised
        nightly_unless(False, "leave", _at_once),  # a CTA exits, and the other one still arrives at its barriers
        nightly_unless(False, "wait_empty", _at_once),
        nightly_unless(False, "expected_bytes", lambda count: count // 2),  # the other CTA's share is not awaited
    ],
)
def test_the_emulated_gpu_finds_a_wrong_cluster(point, replacement):
    p = problem(replace(SHORT, lengths_q=(700,), lengths_k=(640,)))
    injection = Injection(f"planted_{point}", {point: replacement})
    with pytest.raises(EmulationError):
        for seed in range(8):
            emulator = Emulator(resident_ctas=4, warp_schedule="random", seed=seed, dispatch="permuted")
            loaded(p.variant, "sm_90a", injection)(*ordered("forward", p.values(resident=4)), emulator=emulator)
