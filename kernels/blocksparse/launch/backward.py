"""Launching the backward pass on torch tensors: preprocess, the kernel, postprocess; or, where dQ is separate, the dQ
kernel between preprocess and the backward kernel (NOTE [separate dQ] of dq_by_queries/kernel.py).

The PyTorch op (ops.py) validates, allocates gradients and makes operands fit; nothing here looks at values on the
device or synchronises. `backward_launches` is apart from launching so that an emulated GPU gets the same numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from kernels.blocksparse.compile.runtime import arch_of, launch
from kernels.blocksparse.launch.backward_tuning import (
    Tuning,
    backward_tuning,
    has_ordered_runs,
    keys_of,
    may_exchange,
)
from kernels.blocksparse.launch.by_length import (
    halves_to_launch,
    order_of_keys,
    order_of_partials,
    order_of_queries,
    order_values,
    tiles_to_launch,
)
from kernels.blocksparse.launch.concurrency import concurrent_pairs, group_split_of, last_group, reverses_last_group
from kernels.blocksparse.launch.forward import (
    EMULATED,
    INT32_MAX,
    Sequences,
    Values,
    broadcast_strides,
    check_depth,
    fits,
    for_operands,
    launch_order,
    list_values,
    lse_values,
    mask_kind,
    mask_values,
    multiprocessors,
    operand_values,
    position_values,
    rows_values,
    sequence_values,
    tiles_of_queries,
)
from kernels.blocksparse.launch.split_tiles import (
    BACKWARD,
    FREE,
    SplitSums,
    backward_sums,
    may_split,
    no_split,
    split_of,
    without_splits,
)
from kernels.blocksparse.lists.types import BlockSparse
from kernels.blocksparse.lists.write_order import with_order
from kernels.blocksparse.spec.injection import NO_HOST_INJECTION, HostInjection
from kernels.blocksparse.spec.variant import (
    LARGEST_DIM,
    NO_INJECTION,
    PAIR_KEYS,
    Injection,
    Variant,
    backward_dim,
    backward_products,
    has_separate_dq,
    padded_dim,
    semaphores_of_tile,
)

SCHEDULES = {"ascending": 0, "descending": 1, "permutation": 2}


@dataclass(frozen=True, eq=False)
class Workspace:
    """Memory that the three kernels share. Preprocess fills lse2 and delta, and zeroes the tile counter, the semaphores
    and, for atomic adds, dq_sum.

    dq_sum        float32: NOTE [dQ accumulator] of backward/dq_accumulator.py; before ordered adds as it was allocated:
                  NOTE [first add] there; None where dQ is separate
    dkv_sum       float32: NOTE [dK and dV partials] of backward/dkv_partials.py; None where group_split is 1
    lse2, delta   float32: NOTE [statistics] of preprocess.py
    tile_counter  int32 (1,)
    semaphores    int32 (batch, heads_q, m_blocks), or so many for each of several parts (`semaphores_of_tile`),
                  readable by another stream while the kernel runs; none where dQ is separate
    tiles         (stride_batch, total): `Tiles` of backward/dq_accumulator.py; key_tiles: those of keys
    group_split   units of each KV head: NOTE [group split] of group_split.py
    """

    dq_sum: Tensor | None
    dkv_sum: Tensor | None
    lse2: Tensor
    delta: Tensor
    tile_counter: Tensor
    semaphores: Tensor
    tiles: tuple[int, int]
    key_tiles: tuple[int, int]
    group_split: int

    @property
    def separate_dq(self) -> bool:
        """True where dQ is the dQ kernel's."""
        return self.dq_sum is None

    @property
    def statistics(self) -> Values:
        """Arguments: the statistics of each query."""
        return {"lse2": self.lse2, "delta": self.delta}

    @property
    def dq(self) -> Values:
        """Arguments: the sums of dQ, and where each sequence's tiles of queries lie."""
        return {"dq_sum": 0 if self.dq_sum is None else self.dq_sum, **self.tiles_of_queries}

    @property
    def tiles_of_queries(self) -> Values:
        """Arguments: where each sequence's tiles of queries lie."""
        stride, total = self.tiles
        return {"tiles_stride_batch": stride, "tiles_total": total}

    @property
    def dkv(self) -> Values:
        """Arguments: the sums of dK and dV, and where each sequence's tiles of keys lie."""
        stride, total = self.key_tiles
        dkv_sum = 0 if self.dkv_sum is None else self.dkv_sum
        return {"dkv_sum": dkv_sum, "key_tiles_stride_batch": stride, "key_tiles_total": total}

    @property
    def counters(self) -> Values:
        """Arguments: what CTAs count with, in global memory."""
        return {"tile_counter": self.tile_counter, "semaphores": self.semaphores}

    def semaphores_of(self, main: Variant) -> Tensor:
        """Those that a backward kernel takes: of several parts all or, where it uses one, the first: reports then name
        no part."""
        straight = main.tile_n == 64 or ("transposed", 0) in main.tuning
        several = main.products == "wgmma" and (main.dim_padded > LARGEST_DIM[128] or not straight)
        return self.semaphores if several or self.semaphores.dim() == 3 else self.semaphores[0]


def backward(
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    do: Tensor,
    sequences: Sequences,
    blocks: BlockSparse,
    *,
    scale: float,
    softcap: float | None = None,
    deterministic: bool = False,
    pairs: int | None = None,
    group_split: int | None = None,
    separate_dq: bool = False,
    injection: Injection = NO_INJECTION,
    host: HostInjection = NO_HOST_INJECTION,
    tuning: Tuning = (),
    products: str | None = None,
    workspace: Workspace | None = None,
) -> None:
    """Compute dq, dk and dv on q's device and its current stream. Shapes and layouts as for launch.forward.

    dq, dk, dv     of q's dtype, or all of float32
    o, lse         what forward computed; do: the gradient of o, of q's dtype
    blocks         with backward lists; deterministic: its order, computed here where it has none
    deterministic  adds to dQ happen in the order of blocks.schedule; else atomically, in any order
    pairs          concurrent (sequence, unit) pairs; None: `concurrent_pairs`
    group_split    units of each KV head, a divisor of its query heads; None: as `group_split_of` says, or as the
                   workspace has
    separate_dq    dQ by the dQ kernel, where `may_separate_dq`: no adds to dQ, so gradients are deterministic always;
                   or as the workspace has it
    products       as for `backward_variants`
    workspace      None: allocated here
    Rows past a sequence's end are not written. Raises ValueError for operands that do not fit (`fits`), for a scale or
    softcap that is not positive and finite, for gradients of several dtypes, for blocks without backward lists, for
    too many tiles and for a separate dQ where there is none; checks nothing else.
    """
    if not sequences.batch * q.shape[-2] * blocks.m_blocks:  # no queries: no CTA would clear the workspace either
        dk.zero_()
        dv.zero_()
        return
    if workspace is None:
        workspace = make_workspace(q, k, sequences, blocks, deterministic, group_split, separate_dq, products)
    launches = backward_launches(
        dq, dk, dv, q, k, v, o, lse, do, sequences, blocks, workspace,
        scale=scale, softcap=softcap, deterministic=deterministic, pairs=pairs, tuning=tuning,
        products=products,
    )  # fmt: skip
    for variant, values in launches:
        injected = injection.part(variant.kind)
        launch(host.kernel(variant, values), q.device, host.changed(variant, values), injected)


def backward_variants(
    q: Tensor,
    blocks: BlockSparse,
    softcap: float | None = None,
    deterministic: bool = False,
    tuning: Tuning = (),
    products: str | None = None,
    float32: bool = False,
    separate_dq: bool = False,
    keys: int | None = None,
) -> tuple[Variant, ...]:
    """The kernels that this problem needs, in order: preprocess, the dQ kernel where dQ is separate, backward and
    postprocess. products: None for the fastest on q's device; "wgmma" or "tcgen05" where the backward kernel has it
    (variant.backward_products). float32: gradients' dtype, else q's. tuning: of the backward kernel and postprocess;
    entries that begin with "dq_" are the dQ kernel's. keys: of every sequence, where these are padded and no tensor
    says how long they are, else None (`keys_of`). Raises ValueError for a separate dQ where there is none."""
    products = fastest_products(q) if products is None else products
    if separate_dq and not may_separate_dq(q, blocks.tile_m, blocks.tile_n, products):
        raise ValueError(
            f"separate_dq: needs products 'wgmma', tile_m 128 and a head dim that the backward kernel has wgmma for, "
            f"got {products!r}, tiles {blocks.tile_m} x {blocks.tile_n} and head dim {q.shape[-1]}"
        )
    tiles, ordered = (blocks.tile_m, blocks.tile_n), deterministic and not separate_dq
    products = "mma" if float32 and products == "tcgen05" else products
    padded = backward_dim(products, *tiles, q.shape[-1])
    products = backward_products(products, tiles[1], padded, tiles[0])
    of_dq = tuple((key.removeprefix("dq_"), value) for key, value in tuning if key.startswith("dq_"))
    tuning = tuple((key, value) for key, value in tuning if not key.startswith("dq_"))
    if products == "wgmma" and not tuning and not (separate_dq and softcap):
        tuning = backward_tuning(blocks, padded, q.shape[-1], softcap is not None, ordered, keys)
    return _variants(
        str(q.dtype).removeprefix("torch."),
        padded,
        tiles,
        mask_kind(blocks.mask),
        softcap is not None,
        ordered,
        tuning,
        of_dq,
        products,
        float32,
        separate_dq,
    )


def backward_lists(q: Tensor, blocks: BlockSparse, products: str | None = None) -> BlockSparse:
    """The lists that the backward kernel of this problem takes: those of pairs of CTAs, where there are some and the
    kernel runs on pairs. products: as for `backward_variants`."""
    paired = blocks.paired
    if paired is None or products != "tcgen05":
        return blocks
    there = backward_products(products, paired.tile_n, padded_dim(q.shape[-1]), paired.tile_m) == products
    return paired if there else blocks


def fastest_products(q: Tensor) -> str:
    """The products of the backward kernel on q's device, where it has them for the tiles and the head dim."""
    return "wgmma" if q.device.type == "cuda" and arch_of(q.device) == "sm_90a" else "mma"


def may_separate_dq(q: Tensor, tile_m: int, tile_n: int, products: str | None = None) -> bool:
    """True where there is a dQ kernel for these tiles and q's head dim and device. products: None for the fastest."""
    return has_separate_dq(
        fastest_products(q) if products is None else products, tile_m, tile_n, padded_dim(q.shape[-1])
    )


@lru_cache
def _variants(
    dtype: str,
    dim: int,
    tiles: tuple[int, int],
    mask: str,
    softcap: bool,
    ordered: bool,
    tuning: Tuning,
    of_dq: Tuning,
    products: str,
    float32: bool,
    separate_dq: bool,
) -> tuple[Variant, ...]:
    before = Variant("preprocess", dtype, dim, tile_m=tiles[0], separate_dq=separate_dq)
    dq = [Variant("dq", dtype, dim, *tiles, mask, False, softcap, "wgmma", of_dq, float32)] if separate_dq else []
    main = Variant("backward", dtype, dim, *tiles, mask, ordered, softcap, products, tuning, float32, separate_dq)
    of_main = (
        "runs",
        "delays",
        "stages_dq",
        "splits",
        "held_columns",
        "exchanges",
        *["depth"] * (dim <= LARGEST_DIM[128]),
    )
    of_after = tuple((key, value) for key, value in tuning if key not in of_main)
    of_cta = (tiles[0], min(tiles[1], PAIR_KEYS // 2))
    after = Variant("postprocess", dtype, dim, *of_cta, products=products, tuning=of_after, float32=float32)
    return before, *dq, main, after


def make_workspace(
    q: Tensor,
    k: Tensor,
    sequences: Sequences,
    blocks: BlockSparse,
    deterministic: bool,
    group_split: int | None = None,
    separate_dq: bool = False,
    products: str | None = None,
) -> Workspace:
    """Memory for one backward pass, on q's device, not initialised: 4 bytes · `backward_dim` per query and head, which
    a separate dQ does without, and little more; where groups are split (group_split; None: `group_split_of`), twice
    that per key and unit. products: as for `backward_variants`."""
    batch, heads_q, heads_kv, m_blocks, tile_m = sequences.batch, *heads_of(q, k), blocks.m_blocks, blocks.tile_m
    n_blocks, tile_n = key_tiles_of(blocks)
    tiles = (m_blocks, batch * m_blocks) if q.dim() == 4 else (1, q.shape[0] // tile_m + batch)
    key_tiles = (n_blocks, batch * n_blocks) if q.dim() == 4 else (1, k.shape[0] // tile_n + batch)
    if group_split is None:
        group_split = group_split_of(blocks, batch, q, k, deterministic)
    dim = backward_dim(products or fastest_products(q), tile_m, blocks.tile_n, q.shape[-1])
    rows = heads_q * tiles[1] * tile_m
    floats = torch.empty(rows * (2 if separate_dq else dim + 2), dtype=torch.float32, device=q.device)
    lse2, delta, dq_sum = floats.split([rows, rows, floats.numel() - 2 * rows])
    size = 2 * heads_kv * group_split * key_tiles[1] * tile_n * dim
    dkv_sum = torch.empty(size, dtype=torch.float32, device=q.device) if group_split > 1 else None
    parts, locks = semaphores_of_tile(tile_m, dim), 0 if separate_dq else m_blocks
    ints = torch.empty(1 + parts * batch * heads_q * locks, dtype=torch.int32, device=q.device)
    semaphores = ints[1:].view(*[parts] * (parts > 1), batch, heads_q, locks)
    sums = None if separate_dq else dq_sum
    return Workspace(sums, dkv_sum, lse2, delta, ints[:1], semaphores, tiles, key_tiles, group_split)


def key_tiles_of(blocks: BlockSparse) -> tuple[int, int]:
    """(tiles of keys of the longest sequence, keys of one) that CTAs have: of a pair of CTAs each has half."""
    n_blocks = 0 if blocks.backward is None else blocks.backward.rows
    return (2 * n_blocks, PAIR_KEYS // 2) if blocks.tile_n == PAIR_KEYS else (n_blocks, blocks.tile_n)


def heads_of(q: Tensor, k: Tensor) -> tuple[int, int]:
    """Query heads and KV heads."""
    return q.shape[-2], k.shape[-2]


def backward_launches(
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    do: Tensor,
    sequences: Sequences,
    blocks: BlockSparse,
    workspace: Workspace,
    *,
    scale: float,
    softcap: float | None = None,
    deterministic: bool = False,
    pairs: int | None = None,
    tuning: Tuning = (),
    products: str | None = None,
) -> list[tuple[Variant, Values]]:
    """The kernels to launch, in order, each with its values by name; without those that have nothing to do."""
    operands = {"q": q, "k": k, "v": v, "o": o, "do": do, "dq": dq, "dk": dk, "dv": dv}
    for name, x in operands.items():
        if not fits(x):
            raise ValueError(f"{name}: needs a dense last dim and 16-byte aligned rows, got strides {x.stride()}")
    for name, number in (("scale", scale), ("softcap", 1.0 if softcap is None else softcap)):
        if not (math.isfinite(number) and number > 0):
            raise ValueError(f"{name}: must be positive and finite, got {number}")
    if dq.dtype not in (q.dtype, torch.float32) or not dq.dtype == dk.dtype == dv.dtype:
        raise ValueError(f"dq, dk, dv: need {q.dtype} or float32 for all, got {dq.dtype}, {dk.dtype} and {dv.dtype}")
    if blocks.backward is None:
        raise ValueError("blocks.backward: got None, need backward lists")
    separate_dq, float32 = workspace.separate_dq, dq.dtype == torch.float32
    deterministic = deterministic and not separate_dq  # from here on: with ordered adds
    lists, order = blocks.backward, blocks.order if deterministic else None
    if deterministic and order is None:
        order = with_order(blocks).order
    keys = keys_of(sequences)
    pre, *of_dq, main, post = backward_variants(
        q, blocks, softcap, deterministic, tuning, products, float32, separate_dq, keys
    )
    check_depth(main, q.shape[-1])
    if main.deterministic and ("runs", 1) in main.tuning and not has_ordered_runs(blocks, keys):
        raise ValueError(
            f"tuning: with ordered adds runs need a full mask of padded sequences of {blocks.tile_n} keys or a multiple"
        )
    exchanges = ("exchanges", 1) in main.tuning
    if exchanges and not may_exchange(blocks):
        raise ValueError("tuning: exchanges needs lists and a schedule that keep the halves of a tile of keys")
    if main.products == "tcgen05":
        main = for_operands(main, q, k, v, do)
    batch, heads_q, heads_kv, m_blocks = sequences.batch, *heads_of(q, k), blocks.m_blocks
    n_blocks, dim, group_split = lists.rows, q.shape[-1], workspace.group_split
    of_ctas, _ = key_tiles_of(blocks)
    after = heads_kv * of_ctas if group_split > 1 else 0
    for name, ctas in (("q", batch * (heads_q * m_blocks + after)), ("k", batch * heads_kv * group_split * of_ctas)):
        if ctas > INT32_MAX:
            raise ValueError(f"{name}: {ctas} tiles (batch × heads × blocks) are too many for one launch")

    pairs = pairs or concurrent_pairs(q, k, blocks, deterministic, group_split)
    ranks = (0, 0) if order is None else (order.partial, order.full)
    kind, positions = blocks.schedule.kind, blocks.schedule.positions
    if not deterministic and positions is None and blocks.lpt is not None and blocks.lpt.columns is not None:
        kind, positions = "permutation", blocks.lpt.columns
    by_length, by_partials = order_of_keys(k, blocks), order_of_partials(k, blocks)
    count_tiles = halves_to_launch if exchanges else tiles_to_launch
    tiles = count_tiles(by_length, k, blocks.tile_n, batch, n_blocks) * heads_kv * group_split
    tiles_of_partials = tiles_to_launch(by_partials, k, blocks.tile_n, batch, of_ctas) * heads_kv
    order_of_rows: Values = {
        **order_values(order_of_queries(q, blocks)),
        "tiles_to_launch": tiles_of_queries(q, blocks, batch),
    }
    split = None
    if may_split(main) and by_length is None:
        split = split_sums(main, q, blocks, workspace, tiles, heads_q // (heads_kv * group_split))
    of_split, tiles = (no_split(tiles), tiles) if split is None else (split.values(), split.split.numbers)
    main = without_splits(main) if split is None else main
    rows_of = sequence_values(sequences)
    sizes: Values = {"batch": batch, "heads_q": heads_q, "m_blocks": m_blocks, "dim": dim}
    sizes_of_keys: Values = {"heads_kv": heads_kv, "n_blocks": n_blocks, "group_split": group_split}
    launches: list[tuple[Variant, Values]] = []
    if batch * heads_q * m_blocks:
        before = {
            **operand_values(o=o, do=do),
            **lse_values(lse),
            **workspace.statistics,
            **workspace.dq,
            **({"dq_sum": 0} if deterministic else {}),  # nothing to zero
            **workspace.counters,
            **rows_values("q", sequences.q_begin, sequences.q_length),
            **order_of_rows,
            **sizes,
        }
        launches.append((pre, before))
        for variant in of_dq:
            launches.append((variant, dq_values(dq, q, k, v, do, sequences, blocks, workspace, scale, softcap)))
    if batch * heads_kv * n_blocks:
        between = {
            **operand_values(q=q, k=k, v=v, do=do, dk=dk, dv=dv),
            **workspace.statistics,
            **workspace.dq,
            **workspace.dkv,
            **workspace.counters,
            "semaphores": workspace.semaphores_of(main),
            **rows_of,
            **list_values(lists.partial, lists.full),
            "partial_rank": ranks[0],
            "full_rank": ranks[1],
            **reversal_values(blocks, pairs, batch * heads_kv * group_split, deterministic and by_length is None),
            **mask_values(blocks.mask, backward=True),
            **position_values(positions),
            **order_values(by_length),
            "tiles_to_launch": tiles,
            **of_split,
            **sizes,
            **sizes_of_keys,
            "merged": int(blocks.merged),
            "schedule": SCHEDULES[kind],
            "pairs": pairs,
            "resident": one_on_each_sm(q),
            "scale": scale,
            "cap": 0.0 if softcap is None else softcap,
        }
        launches.append((main, between))
    if batch * heads_q * m_blocks and not (separate_dq and group_split == 1):
        finishing = {
            **operand_values(dq=dq, dk=dk, dv=dv),
            **workspace.dq,
            **workspace.dkv,
            **rows_of,
            **order_of_rows,
            **order_values(by_partials, "key_"),
            "key_tiles_to_launch": tiles_of_partials,
            **sizes,
            **sizes_of_keys,
            "semaphores": workspace.semaphores if deterministic else 0,
            "n_blocks": of_ctas,
            **({"m_blocks": 0, "tiles_to_launch": 0} if separate_dq else {}),
            "scale": scale,
        }
        launches.append((post, finishing))
    return launches


def reversal_values(blocks: BlockSparse, pairs: int, units: int, deterministic: bool) -> Values:
    """Which groups are reversed, NOTE [reversed groups] of backward/tile_iterator.py, and how many tiles of keys add to
    each tile of dQ; pairs: concurrent ones, of `units` (sequence, unit) pairs."""
    if not (deterministic and reverses_last_group(blocks)):
        nothing = dict.fromkeys(("contributors_stride_batch", "contributors_stride_head"), 0)
        return {"reversed_from": INT32_MAX, "contributors_partial": 0, "contributors_full": 0, **nothing}
    lists = blocks.forward
    stride_batch, stride_head = broadcast_strides(lists.partial.count)
    return {
        "reversed_from": last_group(pairs, units),
        "contributors_partial": lists.partial.count,
        "contributors_full": lists.full.count,
        "contributors_stride_batch": stride_batch,
        "contributors_stride_head": stride_head,
    }


def split_sums(
    main: Variant, q: Tensor, blocks: BlockSparse, workspace: Workspace, tiles: int, heads: int
) -> SplitSums | None:
    """The split of a launch of so many tiles of keys by a kernel that may split them, whose CTAs have so many query
    heads; None where none is: of sequences of unequal lengths, and of groups that are split, whose sums are partials
    already. Atomic adds need no semaphores: parts arrive there."""
    if workspace.group_split > 1 or blocks.forward.full.count.shape[0] > 1:
        return None
    costs = BACKWARD if q.device.type == "cuda" else FREE
    split = split_of(tiles, one_on_each_sm(q), blocks.m_blocks * heads, costs)
    fits_there = 0 < split.tiles <= workspace.semaphores.numel()
    return backward_sums(split, main, workspace.semaphores) if fits_there else None


def one_on_each_sm(q: Tensor) -> int:
    """CTAs that q's device runs at once, of a kernel that fills an SM with one."""
    return multiprocessors(q.device) if q.device.type == "cuda" else EMULATED


def dq_values(
    dq: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    do: Tensor,
    sequences: Sequences,
    blocks: BlockSparse,
    workspace: Workspace,
    scale: float,
    softcap: float | None,
) -> Values:
    """The values of signature.DQ: tiles in the forward kernel's order, by as many CTAs as the device runs at once."""
    tiles = tiles_of_queries(q, blocks, sequences.batch)
    return {
        **operand_values(q=q, k=k, v=v, do=do, dq=dq),
        **workspace.statistics,
        **workspace.tiles_of_queries,
        **sequence_values(sequences),
        **list_values(blocks.forward.partial, blocks.forward.full),
        **mask_values(blocks.mask),
        **launch_order(blocks, q, k, sequences.batch),
        "tile_counter": workspace.tile_counter,
        "batch": sequences.batch,
        "heads_q": q.shape[-2],
        "heads_kv": k.shape[-2],
        "m_blocks": blocks.m_blocks,
        "dim": q.shape[-1],
        "resident": min(tiles, one_on_each_sm(q)),
        "scale": scale,
        "cap": 0.0 if softcap is None else softcap,
    }
