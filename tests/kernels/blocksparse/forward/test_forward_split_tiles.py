"""Tiles of a full mask's last wave whose keys several CTAs share (NOTE [split tiles] of common/split_tiles.py): where
they are chosen, what they compute on the emulated GPU, and that it finds what is wrong with them."""

from dataclasses import replace

import pytest
import torch
from blocksparse_runs import DEVICE, HOPPER, loaded, run_forward
from covering import nightly_unless
from forward_cases import Case, errors, problem

pytest.importorskip("cutlass")

from fuzz.devices.emulator import Emulator
from kernels.blocksparse.launch import forward as launch
from kernels.blocksparse.launch.split_tiles import FORWARD, Split, forward_sums, split_of
from kernels.blocksparse.lists.bands import band
from kernels.blocksparse.lists.builder import dense
from kernels.blocksparse.spec.signature import ordered
from kernels.blocksparse.spec.variant import NO_INJECTION, Variant

WIDE = Case((500,), (600,), 2, 1, dim=64, tile_m=192, tile_n=128, products="wgmma", tuning=(("splits", 1),))


def split_into(p, first, parts):
    """Sums of the problem's tiles from number `first` on, each in so many parts."""
    tiles = p.blocks.m_blocks * p.case.heads_q * len(p.case.lengths_q)
    arrivals = torch.zeros((tiles - first) * (p.case.tile_m // 64), dtype=torch.int32, device=p.q.device)
    return forward_sums(Split(first, tiles - first, parts), p.variant, arrivals)


def run_split(case, first, parts, resident):
    """The problem of a case, run so."""
    p = problem(case, DEVICE)
    split = split_into(p, first, parts)
    counter = torch.zeros(1, dtype=torch.int32, device=p.q.device)
    run_forward(p, NO_INJECTION, "sm_90a", resident=resident, tile_counter=counter, split=split)
    return p


def test_small():
    p = run_split(WIDE, 3, 2, 3)
    assert max(errors(p)) <= 1, errors(p)
