"""The custom operators attnfuzz::block_sparse_forward and block_sparse_backward: their shapes, their autograd.

Operators take flat arguments, so a BlockSparse travels as a list of tensors and a list of numbers (`flatten`,
`unflatten`). Outputs and scratch come from torch.empty at each call; nothing is cached or asked of the device, so that
calls can be captured in a CUDA graph.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kernels.blocksparse.launch import forward as launch
from kernels.blocksparse.launch.lse_gradient import backward_pass
from kernels.blocksparse.lists.schedule import Kind, Schedule
from kernels.blocksparse.lists.types import (
    Band,
    Bits,
    BlockList,
    BlockLists,
    BlockMask,
    BlockSparse,
    Intervals,
    LPTOrder,
    SequenceOrder,
    WriteOrder,
)
from kernels.blocksparse.spec.injection import find_injections

LPT_TENSORS = 6  # of an LPTOrder: rows, columns, and two of each order of sequences
DENSE, PACKED, RAGGED = range(3)  # what `lengths` holds: nothing, cu_seqlens of q and k, lengths of q and k
_MASKS = ("none", "bits", "intervals", "band")
_SCHEDULES: tuple[Kind, ...] = ("ascending", "descending", "permutation")
_FLAGS = ("alike", "own_first", "reverses", "halves")  # of a Schedule


@torch.library.custom_op("attnfuzz::block_sparse_forward", mutates_args=())
def block_sparse_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Sequence[Tensor],
    lists: Sequence[Tensor],
    numbers: Sequence[int],
    scale: float,
    softcap: float,
    deterministic: bool | None,
    injection: str,
    products: str,
) -> tuple[Tensor, Tensor]:
    """(out, lse): see `kernels.blocksparse.api.block_sparse_attention`. lengths: none, or two int32 tensors, cu_seqlens
    (batch + 1,) for packed q (3-D), lengths (batch,) for padded ones (4-D). lists, numbers: `flatten`. products: "" for
    the fastest on q's device. deterministic: None for the faster adds."""
    injections = find_injections(injection)
    out, lse = _empty_outputs(q, v, lengths, injections.host.clears_padding)
    launch.forward(
        _rows(q),
        _rows(k),
        _rows(v),
        _rows_view(out),
        lse,
        _sequences(q, k, lengths),
        unflatten(lists, numbers),
        scale=scale,
        softcap=softcap or None,
        injection=injections.forward,
        host=injections.host,
        products=products or None,
    )
    return out, lse


@block_sparse_forward.register_fake
def _(q, k, v, lengths, lists, numbers, scale, softcap, deterministic, injection, products):
    return _empty_outputs(q, v, lengths)


@torch.library.custom_op("attnfuzz::block_sparse_backward", mutates_args=())
def block_sparse_backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    lengths: Sequence[Tensor],
    lists: Sequence[Tensor],
    numbers: Sequence[int],
    scale: float,
    softcap: float,
    deterministic: bool | None,
    injection: str,
    products: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dQ, dK, dV), contiguous, of q's dtype. grad_lse: the gradient of lse, None for none. products: as forward."""
    dq, dk, dv = grads = _empty_gradients(q, k, v, lengths)
    backward_pass(
        _rows_view(dq),
        _rows_view(dk),
        _rows_view(dv),
        _rows(q),
        _rows(k),
        _rows(v),
        _rows(out),
        lse,
        _rows(grad_out),
        _sequences(q, k, lengths),
        unflatten(lists, numbers),
        grad_lse=grad_lse,
        scale=scale,
        softcap=softcap or None,
        deterministic=deterministic,
        injection=find_injections(injection).backward,
        host=find_injections(injection).host,
        products=products or None,
    )
    return grads


@block_sparse_backward.register_fake
def _(
    grad_out, grad_lse, q, k, v, out, lse, lengths, lists, numbers, scale, softcap, deterministic, injection, products
):  # fmt: skip
    return _empty_gradients(q, k, v, lengths)


def _save_for_backward(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    q, k, v, lengths, lists, ctx.numbers, ctx.scale, ctx.softcap, ctx.deterministic, *ctx.names = inputs
    ctx.sizes = len(lengths), len(lists)
    ctx.save_for_backward(q, k, v, *output, *lengths, *lists)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple:
    q, k, v, out, lse, *rest = ctx.saved_tensors
    lengths, lists = rest[: ctx.sizes[0]], rest[ctx.sizes[0] :]
    if grad_out is None:
        grad_out = torch.zeros_like(out)
    grads = block_sparse_backward(
        grad_out, grad_lse, q, k, v, out, lse, lengths, lists,
        ctx.numbers, ctx.scale, ctx.softcap, ctx.deterministic, *ctx.names,
    )  # fmt: skip
    return *grads, [None] * len(lengths), [None] * len(lists), None, None, None, None, None, None


block_sparse_forward.register_autograd(_backward, setup_context=_save_for_backward)


def flatten(blocks: BlockSparse) -> tuple[list[Tensor], list[int]]:
    """The tensors of block lists, and numbers that say what is among them."""
    mask, schedule = blocks.mask, blocks.schedule
    tensors = [*_tensors(blocks.forward)]
    if blocks.backward is not None:
        tensors += _tensors(blocks.backward)
    left = right = 0
    kind = "none"
    if isinstance(mask, Bits):
        kind = "bits"
        tensors += [mask.words, mask.slot] + ([] if mask.slot_backward is None else [mask.slot_backward])
    elif isinstance(mask, Intervals):
        kind = "intervals"
        tensors += [mask.bounds]
    elif isinstance(mask, Band):
        kind, left, right = "band", mask.left, mask.right
        tensors += [mask.offset]
    if schedule.positions is not None:
        tensors += [schedule.positions]
    if blocks.order is not None:
        tensors += [blocks.order.partial, blocks.order.full]
    given: list[Tensor | None] = [None] * LPT_TENSORS
    if (lpt := blocks.lpt) is not None:
        orders = [(None, None) if one is None else (one.sequence, one.start) for one in (lpt.queries, lpt.keys)]
        given = [lpt.rows, lpt.columns, *orders[0], *orders[1]]
        tensors += [tensor for tensor in given if tensor is not None]
    numbers = [
        0 if blocks.backward is None else 1 + int(blocks.backward.halves),
        _MASKS.index(kind),
        int(isinstance(mask, Bits) and mask.slot_backward is not None),
        left,
        right,
        blocks.tile_m,
        blocks.tile_n,
        _SCHEDULES.index(schedule.kind),
        schedule.pairs or 0,
        schedule.group_split or 0,
        sum(int(flag) << bit for bit, flag in enumerate(getattr(schedule, name) for name in _FLAGS)),
        int(blocks.order is not None),
        sum(1 << at for at, tensor in enumerate(given) if tensor is not None),
        int(blocks.merged),
        int(blocks.forward.alike) + 2 * int(blocks.forward.nested),
    ]
    beside = [([], []) if other is None else flatten(other) for other in (blocks.wide, blocks.paired)]
    numbers += [len(part) for both in beside for part in both]
    for more_tensors, more_numbers in beside:
        tensors, numbers = tensors + more_tensors, numbers + more_numbers
    return tensors, numbers


def unflatten(tensors: Sequence[Tensor], numbers: Sequence[int]) -> BlockSparse:
    """The inverse of `flatten`."""
    has_backward, mask_kind, has_slot_backward, left, right, tile_m, tile_n, *others = numbers
    schedule_kind, pairs, group_split, flags, has_order, lpt_orders, merged, promises, *others = others
    (tensors_of_wide, numbers_of_wide, tensors_of_paired, _), of_beside = others[:4], others[4:]
    rest = iter(tensors)
    forward = _lists(rest, alike=bool(promises & 1), nested=bool(promises & 2))
    backward = _lists(rest, halves=has_backward == 2) if has_backward else None
    mask: BlockMask = None
    if _MASKS[mask_kind] == "bits":
        mask = Bits(next(rest), next(rest), next(rest) if has_slot_backward else None)
    elif _MASKS[mask_kind] == "intervals":
        mask = Intervals(next(rest))
    elif _MASKS[mask_kind] == "band":
        mask = Band(left, right, next(rest))
    kind = _SCHEDULES[schedule_kind]
    positions = next(rest) if kind == "permutation" else None
    promised = {name: bool(flags >> bit & 1) for bit, name in enumerate(_FLAGS)}
    schedule = Schedule(kind, positions, pairs or None, group_split or None, **promised)
    order = WriteOrder(next(rest), next(rest)) if has_order else None
    first = _lpt_order([next(rest) if lpt_orders >> at & 1 else None for at in range(LPT_TENSORS)])
    of_wide, of_paired = of_beside[:numbers_of_wide], of_beside[numbers_of_wide:]
    wide = unflatten([next(rest) for _ in range(tensors_of_wide)], of_wide) if of_wide else None
    paired = unflatten([next(rest) for _ in range(tensors_of_paired)], of_paired) if of_paired else None
    return BlockSparse(forward, backward, mask, tile_m, tile_n, schedule, order, first, bool(merged), wide, paired)


def _lpt_order(given: list[Tensor | None]) -> LPTOrder | None:
    """Launch orders of their tensors, each None where there is none."""
    rows, columns, *of_sequences = given
    orders = [
        None if sequence is None or start is None else SequenceOrder(sequence, start)
        for sequence, start in (of_sequences[:2], of_sequences[2:])
    ]
    return None if rows is None else LPTOrder(rows, columns, *orders)


def _tensors(lists: BlockLists) -> list[Tensor]:
    return [x for one in (lists.partial, lists.full) for x in (one.count, one.index, one.begin)]


def _lists(rest, **promises: bool) -> BlockLists:
    partial, full = (BlockList(next(rest), next(rest), next(rest)) for _ in range(2))
    return BlockLists(partial, full, **promises)


def _sequences(q: Tensor, k: Tensor, lengths: Sequence[Tensor]) -> launch.Sequences:
    """Positions of each sequence's rows."""
    if q.dim() == 3:
        (q_begin, q_length), (k_begin, k_length) = ((cu[:-1].contiguous(), cu[1:] - cu[:-1]) for cu in lengths)
        return launch.Sequences(q_begin, q_length, k_begin, k_length)
    batch = q.shape[0]
    if not lengths:
        return launch.Sequences.whole(batch, q.shape[2], k.shape[2])
    begin = torch.zeros(batch, dtype=torch.int32, device=q.device)
    return launch.Sequences(begin, lengths[0].contiguous(), begin, lengths[1].contiguous())


def _rows_view(x: Tensor) -> Tensor:
    """(batch, rows, heads, dim), or packed as it is."""
    return x.transpose(1, 2) if x.dim() == 4 else x


def _rows(x: Tensor) -> Tensor:
    """A tensor, copied where a kernel could not read it as it is."""
    x = _rows_view(x)
    return x if launch.fits(x) else torch.empty(x.shape, dtype=x.dtype, device=x.device).copy_(x)


def _empty_outputs(
    q: Tensor, v: Tensor, lengths: Sequence[Tensor], clears_padding: bool = True
) -> tuple[Tensor, Tensor]:
    """(out, lse); rows of padding are not written by kernels, and are those of rows without keys."""
    out_shape = (*q.shape[:-1], v.shape[-1])
    lse_shape = (q.shape[1], q.shape[0]) if q.dim() == 3 else tuple(q.shape[:-1])
    if q.dim() == 4 and lengths and clears_padding:
        out = torch.zeros(out_shape, dtype=q.dtype, device=q.device)
        return out, torch.full(lse_shape, -float("inf"), dtype=torch.float32, device=q.device)
    out = torch.empty(out_shape, dtype=q.dtype, device=q.device)
    return out, torch.empty(lse_shape, dtype=torch.float32, device=q.device)


def _empty_gradients(q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    new = torch.zeros if q.dim() == 4 and lengths else torch.empty
    dq, dk, dv = (new(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    return dq, dk, dv
