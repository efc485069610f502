"""Launching the forward kernel on torch tensors: addresses, strides and scalars of tensors, by the names of
spec/signature.py.

The PyTorch op (ops.py) validates, allocates outputs and makes operands fit (`fits`); nothing here looks at values on
the device or synchronises, and all that is allocated is a tile counter for persistent CTAs. Values are made apart from
the launch, with tensors standing for their addresses, so that an emulated GPU gets the same arguments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from kernels.blocksparse.compile.runtime import arch_of, launch
from kernels.blocksparse.compile.supported import forward_tuning
from kernels.blocksparse.forward.hopper.tuning import ROWS
from kernels.blocksparse.launch.by_length import order_of_queries, order_values, tiles_to_launch
from kernels.blocksparse.launch.pair_order import pair_positions
from kernels.blocksparse.launch.split_tiles import (
    FORWARD,
    FREE,
    SplitSums,
    forward_sums,
    may_split,
    no_split,
    split_of,
    without_splits,
)
from kernels.blocksparse.lists.lpt import even_share
from kernels.blocksparse.lists.types import Band, Bits, BlockList, BlockMask, BlockSparse, Intervals
from kernels.blocksparse.spec.injection import NO_HOST_INJECTION, HostInjection
from kernels.blocksparse.spec.signature import OPERAND_STRIDES
from kernels.blocksparse.spec.variant import (
    LARGE_TILES,
    NO_INJECTION,
    Injection,
    Variant,
    depth_of,
    forward_products,
    padded_dim,
)

INT32_MAX = 2**31 - 1
_KINDS = {Bits: "bits", Intervals: "intervals", Band: "band", type(None): "none"}
# Bytes of K and V that tiles launched together should not exceed: what the L2 cache does not hold costs energy, of
# which a GPU at its power limit has no more. Of bands and intervals, whose rows are of unequal length, twice as much:
# the short tiles of several heads fill up the SMs.
L2_BYTES, UNEVEN_L2_BYTES = 8 << 20, 16 << 20
WAVE_ROWS = 66 * 128  # queries of each head that are in flight at once, where two heads share the SMs
NEED_TMA = ("cluster", "splits", "nested")  # entries of a tuning
CLUSTER_DIMS = (128, 160, 256)  # at which clusters of two CTAs were faster
WAVES_DIM, WAVES_TILES = 96, 1024  # a head dim at which they were in launches of so many tiles, if none is split
# What clusters of a full mask have else at a head dim; at others, their tiles may be split
WITH_CLUSTERS: dict[int, dict[str, int]] = {WAVES_DIM: {}, 160: {"splits": 1, "turns": 0}}
SPLIT_DIM = 96  # the largest head dim at which splitting the last tiles was faster
MANY_TILES = 32  # of a head, of which an odd one costs little
STRIDE_LIMIT = 1 << 40  # bytes of a tensor map's strides
# Persistent CTAs, or clusters, on an emulated GPU: few, so that those of small problems take several tiles
EMULATED = 3

Value = Tensor | int | float  # of one argument; a tensor stands for its address, 0 for no tensor
Values = dict[str, Value]  # of one launch, by the names of spec/signature.py


@dataclass(frozen=True, eq=False)
class Sequences:
    """Positions of each sequence's rows: int32 (batch,), on the device; or of `whole` batch entries, without tensors.

    q_begin, k_begin    rows before the sequence, from the start of its batch entry: cu_seqlens[:-1] if packed, else 0;
                        None: 0 for all
    q_length, k_length  its rows; an int where begin is None
    entries             sequences, where no tensor says so
    """

    q_begin: Tensor | None
    q_length: Tensor | int
    k_begin: Tensor | None
    k_length: Tensor | int
    entries: int = 0

    @classmethod
    def whole(cls, batch: int, len_q: int, len_k: int) -> Sequences:
        """Sequences that have all rows of their batch entries: no tensor is made, no kernel runs."""
        return cls(None, len_q, None, len_k, batch)

    @property
    def batch(self) -> int:
        """How many sequences there are."""
        return self.entries if self.q_begin is None else self.q_begin.numel()


def fits(x: Tensor) -> bool:
    """Can a kernel read x (…, rows, heads, dim) as it is: dense last dim, 16-byte aligned rows?"""
    *strides, last = x.stride()
    return last == 1 and x.data_ptr() % 16 == 0 and not any(stride % 8 for stride in strides)


def mappable(x: Tensor) -> bool:
    """Can a tensor map describe x, which `fits`? (CUDA driver API, cuTensorMapEncodeTiled)"""
    return max(x.stride()) * x.element_size() < STRIDE_LIMIT


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    sequences: Sequences,
    blocks: BlockSparse,
    *,
    scale: float,
    softcap: float | None = None,
    injection: Injection = NO_INJECTION,
    host: HostInjection = NO_HOST_INJECTION,
    tuning: tuple[tuple[str, int], ...] = (),
    products: str | None = None,
    resident: int | None = None,
) -> None:
    """Compute o and lse on q's device and its current stream.

    q, o     (batch, len_q, heads_q, dim), or packed (total_q, heads_q, dim); bfloat16 or float16
    k, v     (batch, len_k, heads_kv, dim), or packed; heads_q is a multiple of heads_kv
    lse      float32 (batch, heads_q, len_q), or packed (heads_q, total_q), its last dim dense
    scale    positive; softcap: None, or positive
    products of the variant; None: those that `forward_variant` takes for q's device
    resident CTAs of a persistent kernel; None: `resident_ctas`. As many as there are tiles: each has one
    Rows past a sequence's end are not written. Raises ValueError for operands that do not fit (`fits`), for a scale or
    softcap that is not positive and finite, for a depth that is less than the head dim, and for too many tiles for one
    launch; checks nothing else.
    """
    blocks = forward_lists(q, blocks, products)
    variant = for_operands(forward_variant(q, blocks, softcap, tuning, products), q, k, v, o)
    check_depth(variant, q.shape[-1])
    resident = resident_ctas(variant, q) if resident is None else resident
    cluster = cluster_size(variant)
    split, tile_counter = None, None
    if resident is not None and may_split(variant):
        split, tile_counter = split_sums(variant, q, k, blocks, sequences.batch, resident)
        variant = variant if split else without_splits(variant)
    tiles = tiles_of_queries(q, blocks, sequences.batch)
    if split is None and not (resident is None or tiles <= resident or cluster > 1):
        tile_counter = torch.zeros(1, dtype=torch.int32, device=q.device)
    values = forward_values(
        *(q, k, v, o, lse, sequences, blocks),
        scale=scale,
        softcap=softcap,
        resident=resident,
        tile_counter=tile_counter,
        cluster=cluster,
        split=split,
    )
    if values:
        launch(host.kernel(variant, values), q.device, host.changed(variant, values), injection)


def check_depth(variant: Variant, dim: int) -> None:
    """Raises ValueError where the tuning of a kernel has a depth that is less than the head dim."""
    depth = dict(variant.tuning).get("depth") or dim
    if depth < dim:
        raise ValueError(f"tuning: depth needs at least the head dim, {dim}, got {depth}")


def forward_lists(q: Tensor, blocks: BlockSparse, products: str | None = None) -> BlockSparse:
    """The lists that the forward kernel of this problem takes: those of wide tiles, where there are some and it has
    such tiles. products: as for `forward_variant`."""
    wide = blocks.wide
    if wide is None:
        return blocks
    if products is None and q.device.type == "cuda":
        products = forward_products(arch_of(q.device), wide.tile_m)
    tile_m, most = LARGE_TILES.get(products or "", (0, 0))
    return wide if wide.tile_m == tile_m and padded_dim(q.shape[-1]) <= most else blocks


def resident_ctas(variant: Variant, q: Tensor) -> int | None:
    """Number of persistent CTAs to launch: as many as q's device runs at once; None for a kernel without them."""
    if variant.products == "mma":
        return None
    if q.device.type != "cuda":
        return EMULATED * cluster_size(variant)
    cluster = cluster_size(variant)
    return forward_tuning(variant).ctas * multiprocessors(q.device) // cluster * cluster


def cluster_size(variant: Variant) -> int:
    """CTAs of a cluster of a forward kernel."""
    return getattr(forward_tuning(variant), "cluster", 1)


@lru_cache
def multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a CUDA device."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def forward_variant(
    q: Tensor,
    blocks: BlockSparse,
    softcap: float | None = None,
    tuning: tuple[tuple[str, int], ...] = (),
    products: str | None = None,
) -> Variant:
    """The forward kernel that this problem needs. products: None for those that are fastest on q's device."""
    blocks = forward_lists(q, blocks, products)
    if products is None:
        products = forward_products(arch_of(q.device), blocks.tile_m) if q.device.type == "cuda" else "mma"
    if products == "wgmma" and not tuning:
        tuning = tuple(sorted(default_tuning(q, blocks).items()))
    return _forward_variant(
        str(q.dtype).removeprefix("torch."),
        q.shape[-1],
        blocks.tile_m,
        blocks.tile_n,
        mask_kind(blocks.mask),
        softcap is not None,
        products,
        tuning,
    )


def default_tuning(q: Tensor, blocks: BlockSparse) -> dict[str, int]:
    """The tuning of Hopper's kernel for a problem: how CTAs share tiles, or their K and V, and the columns of products
    where these are fewer than the tiles'."""
    padded = padded_dim(q.shape[-1])
    depth = depth_of(q.shape[-1], padded)
    found = {"depth": depth} if depth else {}
    if shares_loads(q, blocks):
        return found | {"cluster": 2} | WITH_CLUSTERS.get(padded, {"splits": 1})
    if shares_nested_loads(q, blocks):
        return found | {"cluster": 2, "nested": 1}
    return found | ({"splits": 1} if splits_tiles(q, blocks) else {})


def shares_loads(q: Tensor, blocks: BlockSparse) -> bool:
    """True where two CTAs load K and V for each other: of a full mask, whose query tiles look at the same keys, and at
    head dims where that is faster (docs/performance/log.md). A last tile that has no other is then half of a pair."""
    dim = padded_dim(q.shape[-1])
    return (
        is_full(q, blocks)
        and blocks.tile_m == 128
        and (dim in CLUSTER_DIMS or (dim == WAVES_DIM and tiles_of_queries(q, blocks, q.shape[0]) >= WAVES_TILES))
        and (blocks.m_blocks % 2 == 0 or blocks.m_blocks >= MANY_TILES)
    )


def shares_nested_loads(q: Tensor, blocks: BlockSparse) -> bool:
    """True where two CTAs load K and V for each other whose rows are nested: where the lists say so, of padded
    sequences that have one list."""
    lists = blocks.forward
    return (
        (q.dim(), blocks.tile_m) == (4, 128)
        and isinstance(blocks.mask, Band)
        and lists.nested
        and lists.full.count.shape[0] == 1
        and padded_dim(q.shape[-1]) in CLUSTER_DIMS
    )


def splits_tiles(q: Tensor, blocks: BlockSparse) -> bool:
    """True where tiles of single CTAs may be split, NOTE [split tiles] of common/split_tiles.py: of a full mask, up to
    the head dim up to which that is faster (docs/performance/log.md). Those of clusters always may be."""
    return is_full(q, blocks) and blocks.tile_m > ROWS and padded_dim(q.shape[-1]) <= SPLIT_DIM


def is_full(q: Tensor, blocks: BlockSparse) -> bool:
    """True for a full mask of padded sequences that have one list: all tiles of queries take as long."""
    lists = blocks.forward
    return (blocks.mask, q.dim()) == (None, 4) and lists.alike and lists.full.count.shape[0] == 1


@lru_cache(1024)
def _forward_variant(
    dtype: str,
    dim: int,
    tile_m: int,
    tile_n: int,
    mask: str,
    softcap: bool,
    products: str,
    tuning: tuple[tuple[str, int], ...],
) -> Variant:
    return Variant(
        "forward", dtype, padded_dim(dim), tile_m, tile_n, mask, softcap=softcap, products=products, tuning=tuning
    )


def for_operands(variant: Variant, *operands: Tensor) -> Variant:
    """The kernel for these tensors: without TMA where a tensor map cannot describe one of them."""
    if variant.products == "mma" or all(map(mappable, operands)):
        return variant
    without = tuple(pair for pair in variant.tuning if pair[0] not in NEED_TMA)
    return replace(variant, tuning=without).with_tuning(tma=0)


def forward_values(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    sequences: Sequences,
    blocks: BlockSparse,
    *,
    scale: float,
    softcap: float | None = None,
    resident: int | None = None,
    tile_counter: Tensor | None = None,
    cluster: int = 1,
    split: SplitSums | None = None,
) -> Values:
    """The values of signature.FORWARD; none where there is nothing to launch.

    resident, tile_counter   CTAs to launch of a persistent kernel, and an int32 that is 0; None: a CTA for each tile
    cluster                  CTAs of a cluster, `cluster_size`, of which `resident` is a multiple: they need no counter
    split                    tiles that are split; None: none are
    """
    for name, x in (("q", q), ("k", k), ("v", v), ("o", o)):
        if not fits(x):
            raise ValueError(f"{name}: needs a dense last dim and 16-byte aligned rows, got strides {x.stride()}")
    for name, number in (("scale", scale), ("softcap", 1.0 if softcap is None else softcap)):
        if not (math.isfinite(number) and number > 0):
            raise ValueError(f"{name}: must be positive and finite, got {number}")
    batch, heads_q, heads_kv, m_blocks = sequences.batch, q.shape[-2], k.shape[-2], blocks.m_blocks
    numbers = tiles_of_queries(q, blocks, batch, cluster)
    of_split = no_split(numbers)
    if split is not None:
        of_split, numbers = split.values(), split.split.numbers
    ctas = numbers * cluster
    persistent = ctas if resident is None or (tile_counter is None and cluster == 1) else min(resident, ctas)
    if ctas > INT32_MAX:
        raise ValueError(f"q: {ctas} tiles (batch × heads × m_blocks) are too many for one launch")
    if ctas == 0:
        return {}
    return {
        **operand_values(q=q, k=k, v=v, o=o),
        **lse_values(lse),
        **sequence_values(sequences),
        **list_values(blocks.forward.partial, blocks.forward.full),
        **mask_values(blocks.mask),
        **launch_order(blocks, q, k, batch, cluster, persistent),
        "tile_counter": 0 if tile_counter is None else tile_counter,
        "batch": batch,
        "heads_q": heads_q,
        "heads_kv": heads_kv,
        "m_blocks": m_blocks,
        "dim": q.shape[-1],
        **of_split,
        "resident": persistent,
        "scale": scale,
        "cap": 0.0 if softcap is None else softcap,
    }


def split_sums(
    variant: Variant, q: Tensor, k: Tensor, blocks: BlockSparse, batch: int, resident: int
) -> tuple[SplitSums, Tensor] | tuple[None, None]:
    """The split of a launch by a kernel that may split tiles, and its tile counter; None where none is split."""
    cluster, listed = cluster_size(variant), -(-k.shape[-3] // blocks.tile_n)
    tiles = tiles_of_queries(q, blocks, batch, cluster)
    split = split_of(tiles, resident // cluster, listed, FORWARD if q.device.type == "cuda" else FREE)
    if not split.tiles:
        return None, None
    warpgroups = cluster * (variant.tile_m // ROWS)
    counters = torch.zeros(1 + split.tiles * warpgroups, dtype=torch.int32, device=q.device)
    return forward_sums(split, variant, counters[1:], cluster), counters[:1]


def tiles_of_queries(q: Tensor, blocks: BlockSparse, batch: int, cluster: int = 1) -> int:
    """Tiles of queries to launch, of all heads; in clusters of CTAs those of a cluster together count as one."""
    order = order_of_queries(q, blocks)
    m_blocks = -(-blocks.m_blocks // cluster)
    return tiles_to_launch(order, q, blocks.tile_m * cluster, batch, m_blocks) * q.shape[-2]


def launch_order(blocks: BlockSparse, q: Tensor, k: Tensor, batch: int, cluster: int = 1, resident: int = 1) -> Values:
    """The order in which tiles of queries are launched: by the mask, or LPT; a section of heads after the other; for
    clusters whose rows are nested, as pair_order.py lays them out. resident: CTAs of the launch."""
    # a band's long rows are at one end, rows that are alike are equally long
    by_direction = cluster > 1 or blocks.lpt is None or isinstance(blocks.mask, Band)
    rows = None if by_direction else blocks.lpt.rows  # type: ignore[union-attr]
    order = order_of_queries(q, blocks)
    longest = None if order is None else min(blocks.m_blocks * blocks.tile_m, k.shape[0])
    section = query_heads_of_section(k, batch, q.shape[-2], blocks.mask, longest)
    if cluster > 1 and not blocks.forward.alike:
        pairs, heads = -(-blocks.m_blocks // cluster), q.shape[-2]
        rows = pair_positions(pairs, batch * heads, resident // cluster, section, q.device).view(batch, heads, pairs)
    return {
        **position_values(rows),
        **order_values(order),
        "schedule": int(long_rows_last(blocks.mask)) if rows is None else 2,
        "l2_head_section": section,
    }


def rows_values(name: str, begin: Tensor | None, length: Tensor | int) -> Values:
    """Values that say where the rows of q or of k are: `Sequences` of common/list_reader.py."""
    if begin is None:
        return {f"{name}_begin": 0, f"{name}_length": 0, f"{name}_rows": length}
    return {f"{name}_begin": begin, f"{name}_length": length, f"{name}_rows": 0}


def sequence_values(sequences: Sequences) -> Values:
    """Values that say where the sequences of queries and of keys are."""
    return {
        **rows_values("q", sequences.q_begin, sequences.q_length),
        **rows_values("k", sequences.k_begin, sequences.k_length),
    }


def operand_values(**operands: Tensor) -> Values:
    """Addresses of (batch, rows, heads, dim) or of packed (rows, heads, dim), and their strides in elements."""
    values: Values = {}
    for name, x in operands.items():
        stride_batch, stride_row, stride_head = OPERAND_STRIDES[name]
        *batch, row, head, _ = x.stride()
        values[name] = x
        values[stride_batch] = batch[0] if batch else 0
        values[stride_row] = row
        values[stride_head] = head
    return values


def lse_values(lse: Tensor) -> Values:
    """LSE (batch, heads, rows) or packed (heads, rows)."""
    return {
        "lse": lse,
        "lse_stride_batch": lse.stride(0) if lse.dim() == 3 else 0,
        "lse_stride_head": lse.stride(-2),
    }


def broadcast_strides(x: Tensor) -> tuple[int, int]:
    """Elements between batches and heads of (batch|1, heads|1, …): 0 where one serves all."""
    (batch, heads), strides = x.shape[:2], x.stride()
    return (0 if batch == 1 else strides[0], 0 if heads == 1 else strides[1])


def list_values(partial: BlockList, full: BlockList) -> Values:
    """The lists of partial and of full blocks."""
    partial_batch, partial_head = broadcast_strides(partial.count)
    full_batch, full_head = broadcast_strides(full.count)
    return {
        "partial_count": partial.count,
        "partial_begin": partial.begin,
        "partial_index": partial.index,
        "partial_stride_batch": partial_batch,
        "partial_stride_head": partial_head,
        "full_count": full.count,
        "full_begin": full.begin,
        "full_index": full.index,
        "full_stride_batch": full_batch,
        "full_stride_head": full_head,
    }


def position_values(positions: Tensor | None) -> Values:
    """The block at each launch position, (batch|1, heads|1, blocks), where the schedule has such a permutation."""
    batch, head = (0, 0) if positions is None else broadcast_strides(positions)
    return {
        "positions": 0 if positions is None else positions,
        "positions_stride_batch": batch,
        "positions_stride_head": head,
    }


def mask_kind(mask: BlockMask) -> str:
    """The variant's word for this mask."""
    return _KINDS[type(mask)]


NO_MASK: Values = dict.fromkeys(
    (
        *("mask_words", "mask_slot", "mask_bounds", "band_offset"),
        *("bounds_stride_batch", "bounds_stride_head", "bounds_stride_func", "n_func"),
        *("band_stride", "band_left", "band_right"),
    ),
    0,
)


def mask_values(mask: BlockMask, backward: bool = False) -> Values:
    """Values of the mask of partial blocks; 0 for what belongs to other kinds of masks."""
    if isinstance(mask, Bits):
        slot = mask.slot_backward if backward else mask.slot
        assert slot is not None
        return {**NO_MASK, "mask_words": mask.words, "mask_slot": slot}
    if isinstance(mask, Intervals):
        bounds = mask.bounds
        batch, head = broadcast_strides(bounds)
        return {
            **NO_MASK,
            "mask_bounds": bounds,
            "bounds_stride_batch": batch,
            "bounds_stride_head": head,
            "bounds_stride_func": bounds.stride(2),
            "n_func": bounds.shape[2],
        }
    if isinstance(mask, Band):
        return {
            **NO_MASK,
            "band_offset": mask.offset,
            "band_stride": 0 if mask.offset.numel() == 1 else 1,
            "band_left": mask.left,
            "band_right": mask.right,
        }
    return NO_MASK


def long_rows_last(mask: BlockMask) -> bool:
    """Should each head's tiles be launched from the last one, because later rows have more keys (causal masks)?"""
    return not isinstance(mask, Band) or mask.left > mask.right


def query_heads_of_section(k: Tensor, batch: int, heads_q: int, mask: BlockMask, longest: int | None = None) -> int:
    """Query heads of a section: `l2_head_section`, shared out evenly over all of the batch, or where sections are of a
    sequence each over that; longest: then keys of the longest one."""
    heads_kv = k.shape[-2]
    if longest is None:
        return even_share(batch * heads_kv, l2_head_section(k, batch, mask)) * (heads_q // heads_kv)
    return even_share(heads_kv, l2_head_section(k, batch, mask, longest)) * (heads_q // heads_kv)


def l2_head_section(k: Tensor, batch: int, mask: BlockMask, longest: int | None = None) -> int:
    """KV heads that are launched together, at least 1: as many as do not exceed L2_BYTES or UNEVEN_L2_BYTES with the K
    and V of the longest sequence, where that is said, or else of an average one; of a window with those that tiles in
    flight look at."""
    rows = longest if longest is not None else k.shape[1] if k.dim() == 4 else -(-k.shape[0] // batch)
    most = UNEVEN_L2_BYTES if isinstance(mask, Band | Intervals) else L2_BYTES
    if isinstance(mask, Band):
        rows = min(rows, mask.left + mask.right + WAVE_ROWS)
    return max(1, most // max(2 * rows * k.shape[-1] * k.element_size(), 1))
