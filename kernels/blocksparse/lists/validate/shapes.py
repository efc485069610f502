"""Types, shapes, dtypes and devices of block lists and of what belongs to them: nothing here asks the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.blocksparse.lists.builder import TILES, ceil_div
from kernels.blocksparse.lists.schedule import Schedule
from kernels.blocksparse.lists.types import (
    OPEN,
    Band,
    Bits,
    BlockList,
    BlockLists,
    BlockSparse,
    Intervals,
    LPTOrder,
    SequenceOrder,
    WriteOrder,
)
from kernels.blocksparse.spec.variant import PAIR, PAIR_KEYS, WIDE


@dataclass(frozen=True, eq=False)
class Sizes:
    """Sizes of the problem that lists are checked against: longest_q, longest_k on the host; lengths_q, lengths_k
    (batch,) on the lists' device, None where all sequences have the longest's length."""

    batch: int
    heads_q: int
    heads_kv: int
    longest_q: int
    longest_k: int
    lengths_q: Tensor | None = None
    lengths_k: Tensor | None = None


def check_shapes(
    blocks: BlockSparse, sizes: Sizes, *, backward: bool = False, device: torch.device | None = None
) -> None:
    """Types, dtypes, devices, shapes. backward: whether backward lists are needed. Raises ValueError."""
    check_types(blocks)
    device = blocks.device if device is None else device
    tiles_m = (*TILES, WIDE, PAIR) if blocks.backward is None else TILES
    for name, tiles in (("tile_m", tiles_m), ("tile_n", (*TILES, PAIR_KEYS))):
        if getattr(blocks, name) not in tiles:
            raise ValueError(f"blocks.{name}: needs one of {tiles}, got {getattr(blocks, name)}")
    m_blocks, n_blocks = ceil_div(sizes.longest_q, blocks.tile_m), ceil_div(sizes.longest_k, blocks.tile_n)
    first = blocks.forward.partial.count.shape[:2]
    _check_lists(blocks.forward, "blocks.forward", m_blocks, first, sizes, device)
    if blocks.backward is not None:
        _check_lists(blocks.backward, "blocks.backward", n_blocks, first, sizes, device)
    elif backward:
        raise ValueError("blocks.backward: needs backward lists (see transpose.with_backward), got None")
    _check_mask(blocks, sizes, device)
    _check_schedule(blocks.schedule, n_blocks, first, sizes, device)
    _check_lpt(blocks, n_blocks, first, sizes, device)
    if blocks.order is not None and blocks.backward is None:
        raise ValueError("blocks.order: needs backward lists beside it, got none")
    if blocks.order is not None and blocks.backward is not None:
        for kind in ("partial", "full"):
            parallel = getattr(blocks.backward, kind).index
            _check_tensor(
                getattr(blocks.order, kind), f"blocks.order.{kind}", torch.int32, tuple(parallel.shape), device
            )


def check_types(blocks: BlockSparse) -> None:
    """Checks that every part has the type of its field, which annotations alone do not. Raises ValueError."""
    _check_type(blocks, BlockSparse, "blocks")
    for name, lists in (("blocks.forward", blocks.forward), ("blocks.backward", blocks.backward)):
        if lists is None and name == "blocks.backward":
            continue
        _check_type(lists, BlockLists, name)
        for kind in ("partial", "full"):
            one = getattr(lists, kind)
            _check_type(one, BlockList, f"{name}.{kind}")
            _check_tensors(one, f"{name}.{kind}", "count", "index", "begin")
    mask = blocks.mask
    if isinstance(mask, Bits):
        _check_tensors(mask, "blocks.mask", "words", "slot")
    elif isinstance(mask, Intervals):
        _check_tensors(mask, "blocks.mask", "bounds")
    elif isinstance(mask, Band):
        _check_tensors(mask, "blocks.mask", "offset")
    elif mask is not None:
        raise ValueError(f"blocks.mask: needs Bits, Intervals, Band or None, got {type(mask).__name__}")
    _check_type(blocks.schedule, Schedule, "blocks.schedule")
    if blocks.schedule.positions is not None:
        _check_tensors(blocks.schedule, "schedule", "positions")
    if blocks.order is not None:
        _check_type(blocks.order, WriteOrder, "blocks.order")
        _check_tensors(blocks.order, "blocks.order", "partial", "full")
    if blocks.lpt is not None:
        _check_type(blocks.lpt, LPTOrder, "blocks.lpt")
        for name, order in (("queries", blocks.lpt.queries), ("keys", blocks.lpt.keys)):
            if order is not None:
                _check_type(order, SequenceOrder, f"blocks.lpt.{name}")
                _check_tensors(order, f"blocks.lpt.{name}", "sequence", "start")
        _check_tensors(blocks.lpt, "blocks.lpt", "rows")
    if blocks.wide is not None:
        _check_type(blocks.wide, BlockSparse, "blocks.wide")
    if blocks.paired is not None:
        _check_type(blocks.paired, BlockSparse, "blocks.paired")


def _check_lists(
    lists: BlockLists, name: str, rows: int, first: torch.Size, sizes: Sizes, device: torch.device
) -> None:
    for kind in ("partial", "full"):
        one = getattr(lists, kind)
        field = f"{name}.{kind}"
        shape = tuple(one.count.shape)
        if not (len(shape) == 3 and _shares(shape[:2], sizes.batch, sizes.heads_q) and shape[2] == rows):
            raise ValueError(
                f"{field}.count: needs shape ({_either(sizes.batch)}, {_either(sizes.heads_q)}, {rows}), got {shape}"
            )
        if shape[:2] != tuple(first):
            raise ValueError(
                f"{field}.count: needs batch and heads as blocks.forward.partial's {tuple(first)}, got {shape}"
            )
        _check_tensor(one.count, f"{field}.count", torch.int32, shape, device)
        _check_tensor(one.begin, f"{field}.begin", torch.int64, shape, device)
        if one.index.dim() != 1 or not one.index.numel():
            raise ValueError(f"{field}.index: needs one dimension, at least one element, got {tuple(one.index.shape)}")
        _check_tensor(one.index, f"{field}.index", torch.int32, tuple(one.index.shape), device)


def _check_mask(blocks: BlockSparse, sizes: Sizes, device: torch.device) -> None:
    mask = blocks.mask
    if isinstance(mask, Bits):
        tile = (blocks.tile_m, blocks.tile_n // 32)
        words = tuple(mask.words.shape)
        if len(words) != 3 or words[1:] != tile or not words[0]:
            raise ValueError(f"blocks.mask.words: needs shape (at least 1, {tile[0]}, {tile[1]}), got {words}")
        _check_tensor(mask.words, "blocks.mask.words", torch.int32, words, device)
        parallel = tuple(blocks.forward.partial.index.shape)
        _check_tensor(mask.slot, "blocks.mask.slot", torch.int32, parallel, device)
        if blocks.backward is not None:
            if mask.slot_backward is None:
                raise ValueError("blocks.mask.slot_backward: needs a Tensor where there are backward lists, got None")
            parallel = tuple(blocks.backward.partial.index.shape)
            _check_tensor(mask.slot_backward, "blocks.mask.slot_backward", torch.int32, parallel, device)
    elif isinstance(mask, Intervals):
        shape = tuple(mask.bounds.shape)
        fits = len(shape) == 4 and _shares(shape[:2], sizes.batch, sizes.heads_q)
        if not (fits and shape[2] % 2 and shape[3] >= sizes.longest_q):
            needs = f"({_either(sizes.batch)}, {_either(sizes.heads_q)}, odd n_func, at least {sizes.longest_q})"
            raise ValueError(f"blocks.mask.bounds: needs shape {needs}, got {shape}")
        _check_tensor(mask.bounds, "blocks.mask.bounds", torch.int32, shape, device)
    elif isinstance(mask, Band):
        for side in ("left", "right"):
            if not isinstance(getattr(mask, side), int) or abs(getattr(mask, side)) > OPEN:
                raise ValueError(f"blocks.mask.{side}: needs an int within ±{OPEN}, got {getattr(mask, side)}")
        shape = tuple(mask.offset.shape)
        if not (len(shape) == 1 and _shares(shape, sizes.batch)):
            raise ValueError(f"blocks.mask.offset: needs shape ({_either(sizes.batch)},), got {shape}")
        _check_tensor(mask.offset, "blocks.mask.offset", torch.int32, shape, device)


def _check_schedule(schedule: Schedule, n_blocks: int, first: torch.Size, sizes: Sizes, device: torch.device) -> None:
    if schedule.kind not in ("ascending", "descending", "permutation"):
        raise ValueError(f"schedule.kind: needs 'ascending', 'descending' or 'permutation', got {schedule.kind!r}")
    if schedule.pairs is not None and schedule.pairs < 1:
        raise ValueError(f"schedule.pairs: needs None or a positive number, got {schedule.pairs}")
    group = sizes.heads_q // sizes.heads_kv
    if schedule.group_split is not None and (schedule.group_split < 1 or group % schedule.group_split):
        raise ValueError(f"schedule.group_split: needs None or a divisor of {group} heads, got {schedule.group_split}")
    if (schedule.kind == "permutation") != (schedule.positions is not None):
        raise ValueError("schedule.positions: needs a tensor for a permutation, and None for the other kinds")
    if schedule.positions is None:
        return
    shape = tuple(schedule.positions.shape)
    batch, heads = 1 if first[0] == 1 else sizes.batch, 1 if first[1] == 1 else sizes.heads_kv
    if not (len(shape) == 3 and _shares(shape[:2], batch, heads) and shape[2] == n_blocks):
        raise ValueError(
            f"schedule.positions: needs shape ({_either(batch)}, {_either(heads)}, {n_blocks}), of KV heads and no "
            f"finer than the lists, got {shape}"
        )
    _check_tensor(schedule.positions, "schedule.positions", torch.int32, shape, device)


def _check_lpt(blocks: BlockSparse, n_blocks: int, first: torch.Size, sizes: Sizes, device: torch.device) -> None:
    if blocks.lpt is None:
        return
    for name, tensor, heads, blocks_there in (
        ("rows", blocks.lpt.rows, first[1], blocks.m_blocks),
        ("columns", blocks.lpt.columns, 1, n_blocks),
    ):
        if tensor is None:
            continue
        shape = tuple(tensor.shape)
        if not (len(shape) == 3 and _shares(shape[:2], first[0], heads) and shape[2] == blocks_there):
            needs = f"({_either(first[0])}, {_either(heads)}, {blocks_there})"
            raise ValueError(f"blocks.lpt.{name}: needs shape {needs}, no finer than the lists, got {shape}")
        _check_tensor(tensor, f"blocks.lpt.{name}", torch.int32, shape, device)
    for name, order in (("queries", blocks.lpt.queries), ("keys", blocks.lpt.keys)):
        if order is None:
            continue
        for field, x, size in (("sequence", order.sequence, sizes.batch), ("start", order.start, sizes.batch + 1)):
            if tuple(x.shape) != (size,):
                raise ValueError(f"blocks.lpt.{name}.{field}: needs shape ({size},), got {tuple(x.shape)}")
            _check_tensor(x, f"blocks.lpt.{name}.{field}", torch.int32, (size,), device)


def _check_type(value: object, kind: type, name: str) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{name}: needs a {kind.__name__}, got {type(value).__name__}")


def _check_tensors(owner: object, name: str, *fields: str) -> None:
    for field in fields:
        _check_type(getattr(owner, field), Tensor, f"{name}.{field}")


def _check_tensor(tensor: Tensor, name: str, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> None:
    _check_type(tensor, Tensor, name)
    if tensor.dtype != dtype:
        raise ValueError(f"{name}: needs {dtype}, got {tensor.dtype}")
    if tensor.device != device:
        raise ValueError(f"{name}: needs to be on {device}, got {tensor.device}")
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name}: needs shape {shape}, got {tuple(tensor.shape)}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name}: needs to be contiguous, got strides {tensor.stride()}")


def _shares(shape: tuple[int, ...], *sizes: int) -> bool:
    """True where each is 1 or the size; by ==, as tracing finds a number of unknown size in no tuple."""
    return all(one == 1 or one == size for one, size in zip(shape, sizes, strict=True))


def _either(size: int) -> str:
    return "1" if size == 1 else f"1 or {size}"
