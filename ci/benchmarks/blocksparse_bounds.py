"""Bounds of the block-sparse kernels, by arithmetic, and the alternative layouts that `--tune` times.

A GPU without performance counters for us still has four rates that no kernel beats. For each, the share of a measured
time that its work would take alone; the largest is what to look at:

    tensor       operations on pairs that the mask keeps, at the datasheet's dense bf16 rate (wgmma's)
    mma_sync     operations of all listed blocks, masked or not, at what mma.sync reaches of that: 62 %
                 (Luo et al. 2024, "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", table of mma rates)
    memory       every operand once, and the fp32 sums of dQ (zeroed, added to once, read), at the datasheet's rate
    shared       bytes that products read for all listed blocks, at 128 bytes a clock and multiprocessor
    exponentials of the forward pass, for all listed blocks, at 16 a clock and multiprocessor (CUDA Programming Guide,
                 "Arithmetic Instructions", compute capability 9.0)

mma.sync re-reads its operands for each warp, so that shared memory is nearly as busy as the tensor cores:
a product (m, n, k) by a × b warps reads a·b·(m/a + n/b)·k elements. wgmma, which mma_sync does not bound, reads them
once for 64 rows.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.blocksparse.backward.tiling import WARPS, choose_tiling
from kernels.blocksparse.compile.runtime import arch_of
from kernels.blocksparse.compile.supported import forward_tuning
from kernels.blocksparse.forward.blackwell.tuning import BlackwellTuning
from kernels.blocksparse.forward.hopper.tuning import HopperTuning
from kernels.blocksparse.launch.forward import mask_kind
from kernels.blocksparse.lists.types import BlockSparse
from kernels.blocksparse.spec.variant import Variant, backward_products, forward_products, padded_dim

# Peak rates of an H100 SXM: NVIDIA's datasheet (dense bf16, HBM3), CUDA's boost clock where torch cannot say.
FLOPS, BYTES, MULTIPROCESSORS, CLOCK = 989e12, 3.35e12, 132, 1.755e9
MMA_SYNC = 0.62

Tuning = dict[str, int]
# (direction, (tile_m, tile_n), tuning); the default comes first, and once more after the others: the spread
_FORWARD_64: list[Tuning] = [
    {},
    {"pipelined": 1},
    {"step": 32, "pipelined": 1},
    {"step": 32},
    {"ctas": 3, "q_in_registers": 0},
    {"ctas": 3, "step": 32},
    {},
]
_FORWARD_128: list[Tuning] = [
    {},
    {"stages": 1, "step": 64},
    {"stages": 2, "step": 64},
    {"stages": 2, "step": 32},
    {"stages": 2, "step": 32, "pipelined": 1},
    {"warps": 8, "stages": 2, "q_in_registers": 1},
    {"warps": 8, "stages": 2, "q_in_registers": 1, "pipelined": 1},
    {},
]
# "pairs" is launch_backward's argument, not the kernel's: KV heads side by side
_BACKWARD: list[Tuning] = [
    {},
    {"pairs": 1},
    {"pairs": 2},
    {"pairs": 16},
    {"wide_stores": 0},
    {"stages_ds": 1},
    {"stages_ds": 2},
    {"warps_s": 4},
    {"warps_dkv": 4},
    {},
]
ALTERNATIVES: dict[int, list[tuple[str, tuple[int, int], Tuning]]] = {
    dim: [("forward", (128, 128), tuning) for tuning in forward]
    + [("forward", (64, 128), tuning) for tuning in ({}, {"pipelined": 1})]
    + [("backward", (128, 128), tuning) for tuning in _BACKWARD]
    + [("backward", (64, 128), {})]
    for dim, forward in ((64, _FORWARD_64), (128, _FORWARD_128))
}


def bounds(entry: Any, direction: str, blocks: BlockSparse, flops: int, ms: float) -> dict[str, Any]:
    """Rates that were reached and the shares above, for one measured time of a forward or an atomic backward pass.

    entry   has tokens, dim, heads_q, heads_kv, device
    flops   of the pairs that the mask keeps, in all heads: 4 or 10 · dim each
    """
    variant, listed = variant_of(entry, direction, blocks), blocks_listed(blocks, entry.heads_q)
    per_pair = (4 if direction == "forward" else 10) * variant.dim_padded
    worked = listed * blocks.tile_m * blocks.tile_n * per_pair
    rows = entry.tokens * (entry.heads_q + entry.heads_kv) * entry.dim
    moved = 2 * 2 * rows if direction == "forward" else 2 * (5 * entry.heads_q + 4 * entry.heads_kv) * entry.tokens
    if direction == "backward":
        moved = moved * entry.dim + 4 * 4 * entry.heads_q * entry.tokens * variant.dim_padded
    shared = listed * shared_bytes(variant, direction)
    processors, clock = machine(entry.device)
    seconds = ms / 1e3
    shares = {
        "tensor": flops / FLOPS,
        "mma_sync": worked / (MMA_SYNC * FLOPS),
        "memory": moved / BYTES,
        "shared": shared / (128 * processors * clock),
    }
    if variant.products == "wgmma":
        del shares["mma_sync"]
    if direction == "forward":
        shares["exponentials"] = listed * blocks.tile_m * blocks.tile_n / (16 * processors * clock)
    shares = {name: round(at / seconds, 3) for name, at in shares.items()}
    return {
        "tflops": round(flops / seconds / 1e12, 1),
        "gigabytes_per_second": round(moved / seconds / 1e9, 1),
        "kept_of_listed": round(flops / worked, 3),
        "share_of_time": shares,
        "nearest": max(shares, key=lambda name: shares[name]),
    }


def machine(device: str) -> tuple[int, float]:
    """(multiprocessors, clock in Hz)."""
    if device != "cuda":
        return MULTIPROCESSORS, CLOCK
    found = torch.cuda.get_device_properties(0)
    return found.multi_processor_count, 1e3 * getattr(found, "clock_rate", CLOCK / 1e3)


def variant_of(entry: Any, direction: str, blocks: BlockSparse) -> Variant:
    """The kernel that was measured."""
    dim, mask = padded_dim(entry.dim), mask_kind(blocks.mask)
    products = "mma"
    if entry.device == "cuda":
        arch = arch_of(torch.device("cuda", 0))
        products = forward_products(arch, blocks.tile_m)
        if direction == "backward":
            products = backward_products("wgmma" if arch == "sm_90a" else "mma", blocks.tile_n, dim)
    return Variant(direction, "bfloat16", dim, blocks.tile_m, blocks.tile_n, mask, products=products)


def blocks_listed(blocks: BlockSparse, heads_q: int) -> int:
    """Entries of the forward lists, over all query heads of one sequence."""
    lists = blocks.forward.partial, blocks.forward.full
    return sum(int(one.count.sum()) * (heads_q // one.heads) for one in lists)


def shared_bytes(variant: Variant, direction: str) -> int:
    """Bytes that products read from shared memory for one block."""
    dim = variant.dim_padded
    if direction == "forward":
        tuning = forward_tuning(variant)
        if isinstance(tuning, HopperTuning):
            keys = 2 * tuning.warpgroups(variant) * variant.tile_n * dim
            return 2 * (keys + variant.tile_m * dim * (variant.tile_n // tuning.step))
        if isinstance(tuning, BlackwellTuning):  # P is in tensor memory
            return 2 * (2 * variant.tile_n * dim + variant.tile_m * dim * (variant.tile_n // tuning.step))
        keys = 2 * tuning.warps * variant.tile_n * dim
        queries = 0 if tuning.q_in_registers else variant.tile_m * dim * (variant.tile_n // tuning.step)
        return 2 * (keys + queries)
    tiling = choose_tiling(variant, "sm_90a")
    m, n = tiling.step_m, tiling.tile_n
    products = (  # and how often what is read of B is used
        (m, n, dim, tiling.warps_s, 1),  # S
        (m, n, dim, tiling.warps_s, 1),  # dP
        (n, dim, m, tiling.warps_dkv, 1),  # dV
        (n, dim, m, tiling.warps_dkv, 1),  # dK
        (m, dim, n, tiling.warps_dq, tiling.steps_dq),  # dQ
    )
    together = 4 if tiling.wgmma else 1  # warps whose rows are one operand
    readers = WARPS // together
    return sum(2 * readers * (a * together // p + b // q // o) * k for a, b, k, (p, q), o in products) * tiling.steps
