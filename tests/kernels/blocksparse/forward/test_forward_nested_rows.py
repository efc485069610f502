"""Clusters of Hopper's forward kernel whose rows are nested: where they are chosen, what they compute, and that the
emulated GPU's results show what is wrong with them."""

from dataclasses import replace

import pytest
import torch
from blocksparse_runs import DEVICE, HOPPER, loaded, run_forward
from covering import nightly_unless
from forward_cases import Case, errors, problem, tuning_of

pytest.importorskip("cutlass")

from cutlass import Int32, cute

from fuzz.devices.emulator import Emulator
from kernels.blocksparse.launch import forward as launch
from kernels.blocksparse.launch.pair_order import pair_positions
from kernels.blocksparse.lists.bands import causal, window
from kernels.blocksparse.lists.builder import dense
from kernels.blocksparse.spec.signature import ordered
from kernels.blocksparse.spec.variant import NO_INJECTION, Injection, Variant

TUNING = (("cluster", 2), ("nested", 1))
TILES = {"tile_m": 128, "tile_n": 128}
CAUSAL = Case((640,) * 2, (640,) * 2, 2, 1, dim=128, mask="band", products="wgmma", nested=True, **TILES)


def test_lists_that_say_so_have_pairs_of_nested_rows():
    assert problem(CAUSAL).variant.tuning == TUNING
    nested, not_said = causal(2048, 2048, nested=True), causal(2048, 2048)
    assert tuning_of(2048, 256, blocks=nested) == dict(TUNING)
    assert "cluster" not in tuning_of(2048, blocks=not_said)
    for other in ({"dim": 64}, {"dim": 192}, {"packed": True}, {"products": "mma"}):
        assert "cluster" not in tuning_of(2048, blocks=nested, **other), other
    ragged = causal([2048, 1024], [2048, 1024], nested=True)
    assert "cluster" not in tuning_of(2048, blocks=ragged)


def test_causal_masks_of_long_sequences_say_so_of_their_own_accord():
    assert causal(24576, 24576, backward=False).forward.nested
    assert not causal(191 * 128, 191 * 128, backward=False).forward.nested
    assert not causal(24576, 24576, backward=False, nested=False).forward.nested
    assert not window(24576, 24576, left=24575, backward=False).forward.nested
    assert not dense(24576, 24576, backward=False).forward.nested
    with pytest.raises(ValueError, match="nested: needs left None, got 100"):
        window(300, 300, left=100, nested=True)


def test_without_tensor_maps_there_are_no_clusters():
    nested = Variant("forward", "bfloat16", 128, tile_m=128, mask="band", products="wgmma", tuning=TUNING)
    far = torch.empty_strided((2, 10, 1, 64), (1 << 39, 64, 64, 1), dtype=torch.bfloat16, device="meta")
    assert launch.for_operands(nested, far, far, far).tuning == (("tma", 0),)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"mask": "bits"}, "nested is for bands"),
        ({"tuning": (("nested", 1),)}, "in clusters without splits"),
        ({"tuning": (*TUNING, ("splits", 1))}, "in clusters without splits"),
    ],
)
def test_other_kernels_have_none(changes, why):
    variant = Variant("forward", "bfloat16", 128, tile_m=128, mask="band", products="wgmma", tuning=TUNING)
    with pytest.raises(ValueError, match=why):
        launch.forward_tuning(replace(variant, **changes))


@pytest.mark.parametrize(
    ("len_q", "len_k", "resident", "more"),
    [
        (640, 640, None, {}),  # the last pair has one tile
        (500, 900, 2, {"align": "bottom_right"}),  # two partial blocks in a row
        # keys end inside a block: the second row of a pair has two full blocks more than the first
        nightly_unless(HOPPER, 512, 300, 2, {"right": 60}),
        nightly_unless(HOPPER, 700, 512, 4, {"align": "bottom_right"}),  # rows without keys
        nightly_unless(HOPPER, 512, 1000, 4, {"dtype": torch.float16, "heads_kv": 2, "softcap": 20.0}),
        nightly_unless(HOPPER, 100, 600, 2, {}),  # no second tile at all
        nightly_unless(HOPPER, 700, 700, 4, {"dim": 120, "view": True, "right": 300}),
        nightly_unless(HOPPER, 600, 600, 2, {"dim": 256}),
        nightly_unless(HOPPER, 600, 600, 2, {"dim": 256, "tile_n": 64}),  # two blocks more
        nightly_unless(HOPPER, 600, 700, 2, {"right": None}),  # all blocks are full
        nightly_unless(HOPPER, 600, 700, 2, {"right": -200}),
    ],
)
def test_results_are_right(len_q, len_k, resident, more):
    case = replace(CAUSAL, lengths_q=(len_q,) * 2, lengths_k=(len_k,) * 2, **more)
    p = problem(case, DEVICE)
    assert p.variant.tuning == TUNING
    run_forward(p, NO_INJECTION, "sm_90a", resident=resident)
    assert max(errors(p)) <= 1, errors(p)


@pytest.mark.parametrize("seed", [nightly_unless(seed < 2, seed) for seed in range(8)])
def test_any_schedule_of_warps_and_any_number_of_clusters_gives_the_same_bits(seed):
    p = problem(replace(CAUSAL, lengths_q=(700,) * 2, lengths_k=(700,) * 2))
    run_forward(p, NO_INJECTION, "sm_90a")
    first = p.o.clone()
    p.o.fill_(torch.nan)
    resident = 2 + 2 * (seed % 3)
    emulator = Emulator(resident_ctas=resident, warp_schedule="random", seed=seed, dispatch="permuted")
    values = ordered("forward", p.values(resident=resident))
    assert loaded(p.variant, "sm_90a")(*values, emulator=emulator).status == "finished"
    assert torch.equal(p.o, first)


@cute.jit
def _first_row(full, place, ctas, m_blocks):
    return place[2], Int32(0)


@cute.jit
def _in_order(full, place, ctas, m_blocks):
    return place[2] + ctas - 1, Int32(0)


@cute.jit
def _as_listed(tile_iterator, cluster):
    return tile_iterator


@pytest.mark.parametrize(
    ("point", "replacement"),
    [
        nightly_unless(False, "nested_rows", _first_row),  # the second row lacks blocks
        nightly_unless(False, "nested_rows", _in_order),  # the first row has its diagonal block unmasked
        ("mask_own", _as_listed),  # the same
    ],
)
def test_results_show_what_is_wrong(point, replacement):
    p = problem(replace(CAUSAL, lengths_q=(512,) * 2, lengths_k=(512,) * 2))
    run_forward(p, Injection(f"planted_{point}_{replacement.__name__}", {point: replacement}), "sm_90a")
    assert not max(errors(p)) <= 1


@pytest.mark.parametrize(
    ("tokens", "heads", "section", "most"),
    [(32768, 16, 1, 1.003), (16384, 16, 2, 1.005), (8192, 32, 4, 1.007), (65536, 16, 1, 1.002), (2048, 128, 16, 1.02)],
)
def test_clusters_have_equally_much_to_do(tokens, heads, section, most):
    pairs, clusters = tokens // 256, 66
    rows = pair_positions(pairs, heads, clusters, section, torch.device("cpu"))
    assert torch.equal(rows.sort(1).values, torch.arange(pairs, dtype=torch.int32).expand(heads, pairs))
    # in the order of launch numbers: position by position of a section's heads
    laid = torch.cat([part.T.reshape(-1) for part in rows.split(section)])
    load = torch.zeros(clusters).index_add_(0, torch.arange(len(laid)) % clusters, 2.0 * laid + 3)
    assert load.max() / load.mean() <= most
