"""Tiles of queries of a full mask's last wave whose keys several CTAs share (NOTE [split tiles] of
common/split_tiles.py): which kernels may split them, what they compute on the emulated GPU, and that it finds what is
wrong with them."""

from dataclasses import replace

import pytest
import torch
from blocksparse_runs import DEVICE, HOPPER, loaded, run_forward
from covering import nightly_unless
from forward_cases import Case, errors, problem, tuning_of

pytest.importorskip("cutlass")

from planted_splits import FAULTS

from fuzz.devices.emulator import EmulationError, Emulator
from fuzz.devices.emulator.config import ALL_CHECKS
from kernels.blocksparse.launch import forward as launch
from kernels.blocksparse.launch.split_tiles import Split, forward_sums, may_split
from kernels.blocksparse.lists.bands import band
from kernels.blocksparse.lists.builder import dense
from kernels.blocksparse.spec.signature import ordered
from kernels.blocksparse.spec.variant import NO_INJECTION, Injection, Variant

WIDE = Case((500,), (600,), 2, 1, dim=64, tile_m=192, tile_n=128, products="wgmma", tuning=(("splits", 1),))
PAIRS = replace(WIDE, tile_m=128, dim=128, tuning=(("cluster", 2), ("splits", 1)))


def test_full_masks_up_to_head_dim_96_and_in_clusters_may_split_tiles_and_no_others():
    for dim, options in ((64, {"wide": True}), (64, {}), (40, {"wide": True}), (96, {})):
        assert tuning_of(2048, dim, **options) == {"splits": 1} | ({"depth": 48} if dim == 40 else {})
    for dim in (128, 256):
        assert tuning_of(2048, dim) == {"cluster": 2, "splits": 1}
    assert "splits" not in tuning_of(2048, 192) and "splits" not in tuning_of(3 * 128, 128)
    assert "splits" not in tuning_of(2048, 64, packed=True)
    assert "splits" not in tuning_of(2048, 64, tile_m=64)
    assert "splits" not in tuning_of(2048, 64, products="mma")
    assert "splits" not in tuning_of(2048, 64, blocks=band(2048, 2048, left=None, right=0))
    assert "splits" not in tuning_of(2048, 64, blocks=dense([2048, 1024], [2048, 2048]))


def test_without_tensor_maps_none_are_split():
    of = Variant("forward", "bfloat16", 64, tile_m=192, products="wgmma", tuning=(("splits", 1),))
    far = torch.empty_strided((2, 10, 1, 64), (1 << 39, 64, 64, 1), dtype=torch.bfloat16, device="meta")
    assert may_split(of) and not may_split(launch.for_operands(of, far, far, far))
    with pytest.raises(ValueError, match="splits must be 0 or, with tma, 1"):
        launch.forward_tuning(of.with_tuning(tma=0))


def values_of(p, first, parts, clusters):
    """Values of a launch on so many clusters, whose tiles from number `first` on are in so many parts. Numbers are of
    the tiles of a cluster together."""
    cluster = launch.cluster_size(p.variant)
    tiles = launch.tiles_of_queries(p.q, p.blocks, len(p.case.lengths_q), cluster)
    rows = (tiles - first) * cluster * (p.case.tile_m // 64)
    arrivals, counter = (torch.zeros(n, dtype=torch.int32, device=p.q.device) for n in (rows, 1))
    split = forward_sums(Split(first, tiles - first, parts), p.variant, arrivals, cluster)
    return {"resident": clusters * cluster, "tile_counter": counter, "split": split}


@pytest.mark.parametrize(
    ("dim", "tokens", "heads", "of_cluster"), [(64, 520, 2, 1), (128, 1024, 1, 2), (256, 1280, 1, 2)]
)
def test_what_the_launcher_makes_of_a_split(dim, tokens, heads, of_cluster):
    """Tiles of the last wave of an emulated GPU's 3 CTAs or clusters; sums and arrivals for each CTA's tile."""
    q = torch.zeros(1, tokens, heads, dim, dtype=torch.bfloat16)
    blocks = dense(tokens, tokens, tile_n=128 if dim <= 128 else 64)
    variant = launch.forward_variant(q, blocks, products="wgmma")
    resident = launch.resident_ctas(variant, q)
    split, counter = launch.split_sums(variant, q, q, blocks, 1, resident)
    assert launch.cluster_size(variant) == of_cluster and resident // of_cluster == 3
    tiles = heads * -(-blocks.m_blocks // of_cluster)
    assert 0 < split.split.tiles == tiles % (resident // of_cluster) and split.split.first + split.split.tiles == tiles
    warpgroups = split.split.tiles * of_cluster * 2
    assert split.arrivals.numel() == warpgroups and not split.arrivals.any() and counter.numel() == 1
    assert split.sums.numel() == warpgroups * split.split.parts * 64 * (dim + 8)
    sequences = launch.Sequences.whole(1, tokens, tokens)
    values = launch.forward_values(
        *(q, q, q, q.clone(), torch.zeros(1, heads, tokens), sequences, blocks),
        scale=1.0, resident=resident, tile_counter=counter, cluster=of_cluster, split=split,
    )  # fmt: skip
    assert (values["first_split"], values["split_parts"]) == (split.split.first, split.split.parts)
    assert values["resident"] == min(resident, split.split.numbers * of_cluster)


# a case, the first tile that is split, and parts
SPLITS = {
    "wide tiles": (WIDE, 3, 2),
    "all tiles, more parts than blocks": (WIDE, 0, 8),
    "whole blocks, equal heads": (replace(WIDE, lengths_k=(1024,), heads_kv=2), 4, 3),
    "soft cap, float16, several sequences": (
        replace(WIDE, lengths_q=(200, 200), lengths_k=(700, 700), softcap=20.0, dtype=torch.float16), 5, 3,
    ),
    "tiles of 128 queries": (replace(WIDE, tile_m=128, dim=96, spread=3.0), 2, 2),
    "clusters": (PAIRS, 1, 2),
    "clusters, all tiles, an odd number of them": (replace(PAIRS, lengths_q=(300, 300), lengths_k=(900, 900)), 0, 3),
    "clusters, head dim 256": (replace(PAIRS, dim=256, tile_n=64, lengths_k=(300,)), 2, 2),
    "no keys": (replace(WIDE, lengths_k=(0,)), 2, 2),
    "head dim 72": (replace(WIDE, tile_m=128, dim=72, tuning=(("depth", 80), ("splits", 1))), 2, 2),
    "head dim 192": (replace(WIDE, tile_m=128, dim=192, lengths_k=(300,)), 2, 2),
}  # fmt: skip
DAILY = ("wide tiles", "clusters")


@pytest.mark.parametrize("name", [nightly_unless(HOPPER or name in DAILY, name) for name in SPLITS])
def test_results_are_right_and_have_the_same_bits_in_every_run(name):
    """With any number of CTAs, whichever part of a tile is the last one."""
    case, first, parts = SPLITS[name]
    results = []
    for clusters in (1, 2, 5, 40):
        p = problem(case, DEVICE)
        if HOPPER:
            run_forward(p, NO_INJECTION, "sm_90a", **values_of(p, first, parts, clusters))
        else:
            emulator = Emulator(
                resident_ctas=4, warp_schedule="random", seed=clusters, dispatch="permuted", checks=ALL_CHECKS
            )
            values = ordered("forward", p.values(**values_of(p, first, parts, clusters)))
            assert loaded(p.variant, "sm_90a")(*values, emulator=emulator).status == "finished"
        assert max(errors(p)) <= 1, errors(p)
        results.append((p.o, p.lse))
    assert all(torch.equal(x, y) for other in results[1:] for x, y in zip(results[0], other, strict=True))


@pytest.mark.parametrize(
    "case", [pytest.param(WIDE, id="wide tiles"), pytest.param(PAIRS, id="clusters", marks=pytest.mark.nightly)]
)
def test_a_kernel_that_splits_no_tile_has_the_results_of_one_that_cannot(case):
    without = tuple(pair for pair in case.tuning if pair[0] != "splits")
    p, other = problem(case, DEVICE), problem(replace(case, tuning=without), DEVICE)
    for one in (p, other):
        run_forward(one, NO_INJECTION, "sm_90a")
    assert torch.equal(p.o, other.o) and torch.equal(p.lse, other.lse)


@pytest.mark.parametrize(
    ("fault", "case"),
    [nightly_unless(fault == "too early", fault, WIDE) for fault in FAULTS]
    + [nightly_unless(False, fault, PAIRS) for fault in FAULTS],
)
def test_what_is_wrong_with_them_is_found(fault, case):
    """By the emulated GPU, or in the results."""
    point, replacement = FAULTS[fault]
    injection, found = Injection(f"planted {fault}", {point: replacement}), False
    for seed in range(6):
        p = problem(case)
        emulator = Emulator(resident_ctas=4, warp_schedule="random", seed=seed, dispatch="permuted", checks=ALL_CHECKS)
        values = ordered("forward", p.values(**values_of(p, 1, 2, 4)))
        try:
            loaded(p.variant, "sm_90a", injection)(*values, emulator=emulator)
            found = found or not max(errors(p)) <= 1
        except EmulationError:
            found = True
    assert found
