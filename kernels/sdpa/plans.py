"""From tensors to launches: which kernels a forward or backward pass consists of, with which arguments."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from kernels.sdpa.backward import dkdv_kernel, dq_kernel
from kernels.sdpa.bias_gradient import dbias_kernel
from kernels.sdpa.config import Config, Tiles, find_config
from kernels.sdpa.forward import forward_kernel
from kernels.sdpa.injection import InjectionPoints, find_injection
from kernels.sdpa.launch import INTERPRETED, Launch, check_device
from kernels.sdpa.layout import fits_descriptors, mask_operands, operands, state_operand
from kernels.sdpa.row_state import ROW_TILE, row_state_kernel
from kernels.sdpa.strides import stride_arguments

_TRITON_DTYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


@dataclass(frozen=True)
class Attention:
    """The operands of forward and backward alike: 4-D tensors, a mask with each size 1 or full, a mutant's name
    or ""."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    is_causal: bool
    scale: float
    injection: str

    def __post_init__(self) -> None:
        check_device(self.query)

    @property
    def steps(self) -> InjectionPoints:
        return find_injection(self.injection)

    @property
    def block(self) -> int:
        return self.steps.block(self.query.shape[-1], self.value.shape[-1])

    @property
    def mask_kind(self) -> str:
        if self.mask is None:
            return "none"
        return "bool" if self.mask.dtype == torch.bool else "float"

    @property
    def folds(self) -> bool:
        return self.steps.folds(self.mask_kind, self.scale)

    def config(self, descriptor: bool) -> Config:
        return find_config(self.block, self.query.itemsize, descriptor and self.mask is None, INTERPRETED)

    def operands(self, tiles: Tiles, descriptor: bool, **others: tuple[Tensor, int]) -> dict[str, Any]:
        """Q, K, V, the mask and all sizes; others are further 4-D tensors with the rows of their tiles."""
        named = {"Q": (self.query, tiles.tile_m), "K": (self.key, tiles.tile_n), "V": (self.value, tiles.tile_n)}
        batches, heads_q, len_q, dim = self.query.shape
        _, heads_kv, len_k, dim_v = self.value.shape
        return {
            **operands({**named, **others}, self.block, descriptor, self.steps.seen),
            **mask_operands(self.mask, self.query, self.steps.mask_strides),
            "batches": batches,
            "heads_q": heads_q,
            "heads_kv": heads_kv,
            "len_q": len_q,
            "len_k": len_k,
            "dim": dim,
            "dim_v": dim_v,
            "scale": self.scale,
        }

    def constants(self, tiles: Tiles, descriptor: bool) -> dict[str, Any]:
        return {
            "DTYPE": _TRITON_DTYPES[self.query.dtype],
            "DESCRIPTOR": descriptor,
            "INTERPRETED": INTERPRETED,
            "TILE_M": tiles.tile_m,
            "TILE_N": tiles.tile_n,
            "BLOCK_D": self.block,
        }

    def flags(self) -> dict[str, Any]:
        """MASK, CAUSAL and FOLD, see NOTE [score units] in scores.py."""
        return {"MASK": self.mask_kind, "CAUSAL": self.is_causal, "FOLD": self.folds}


def forward_launches(attention: Attention, out: Tensor, lse: Tensor) -> list[Launch]:
    """Writes out and lse, (batch, heads_q, len_q) contiguous."""
    attention = attention.steps.operands(attention)
    query, steps = attention.query, attention.steps
    descriptor = fits_descriptors(query, attention.key, attention.value, out)
    tiles = attention.config(descriptor).forward
    launch = Launch(
        forward_kernel,
        _tiles(query.shape[2], tiles.tile_m) * query.shape[0] * query.shape[1],
        {**attention.operands(tiles, descriptor, O=(out, tiles.tile_m)), "mLSE": lse},
        {
            **attention.constants(tiles, descriptor),
            **attention.flags(),
            "store_row_statistics": steps.store_row_statistics,
            "kv_head_of": steps.kv_head_of,
            "mask_tail_keys": steps.mask_tail_keys,
            "mask_causal": steps.mask_causal_forward,
            "add_bias": steps.add_bias,
            "last_interior": steps.last_interior_forward,
            "online_softmax": steps.online_softmax,
            "load_values": steps.load_values,
            "row_statistics": steps.row_statistics,
            "statistics_offset": steps.statistics_offset,
        },
        _options(tiles),
    )
    return [launch]


def backward_launches(
    attention: Attention,
    grad_out: Tensor,
    grad_lse: Tensor | None,
    out: Tensor,
    lse: Tensor,
    state: Tensor,
    grads: Sequence[Tensor],
) -> list[Launch]:
    """Writes the row state (`empty_row_state` of query), then grads, which are (dQ, dK, dV)."""
    dq, dk, dv = grads
    attention = attention.steps.operands(attention)
    descriptor = fits_descriptors(attention.query, attention.key, attention.value, grad_out, state, *grads)
    return [
        _row_state_launch(attention, grad_out, grad_lse, out, lse, state),
        _dkdv_launch(attention, grad_out, state, dk, dv, descriptor),
        _dq_launch(attention, grad_out, state, dq, descriptor),
    ]


def _row_state_launch(
    attention: Attention, grad_out: Tensor, grad_lse: Tensor | None, out: Tensor, lse: Tensor, state: Tensor
) -> Launch:
    batches, heads_q, len_q, dim_v = out.shape
    heads = attention.steps.state_heads(heads_q, attention.key.shape[1])
    descriptor = fits_descriptors(out, grad_out)
    tiles = attention.config(descriptor).dq
    return Launch(
        row_state_kernel,
        _tiles(state.shape[2], tiles.tile_m) * batches * heads,
        {
            **operands(
                {"O": (out, tiles.tile_m), "dO": (grad_out, tiles.tile_m)},
                attention.block,
                descriptor,
                attention.steps.seen,
            ),
            "mLSE": lse,
            "mdLSE": lse if grad_lse is None else grad_lse,
            **stride_arguments("dLSE", (0, 0, 0) if grad_lse is None else grad_lse.stride()),
            "mState": state,
            "batches": batches,
            "heads_q": heads,
            "len_q": len_q,
            "dim_v": dim_v,
            "len_dlse": 0 if grad_lse is None else len_q,
            "lse_unit": math.log2(math.e) if attention.folds else 1.0,
        },
        {
            "DESCRIPTOR": descriptor,
            "INTERPRETED": INTERPRETED,
            "TILE_M": tiles.tile_m,
            "BLOCK_D": attention.block,
            "store_row_state": attention.steps.store_row_state,
        },
        {"num_warps": tiles.warps},
    )


def _dkdv_launch(
    attention: Attention, grad_out: Tensor, state: Tensor, dk: Tensor, dv: Tensor, descriptor: bool
) -> Launch:
    steps = attention.steps
    tiles = attention.config(descriptor).dkdv
    m, n = tiles.tile_m, tiles.tile_n
    return Launch(
        dkdv_kernel,
        _tiles(dk.shape[2], n) * dk.shape[0] * dk.shape[1],
        {
            **attention.operands(tiles, descriptor, dO=(grad_out, m), dK=(dk, n), dV=(dv, n)),
            "mState": state_operand(state, m, descriptor),
        },
        {
            **attention.constants(tiles, descriptor),
            **attention.flags(),
            "mask_causal": steps.mask_causal_backward,
            "add_bias": steps.add_bias,
            "score_gradient": steps.score_gradient,
            "first_query": steps.first_query,
            "before_head": steps.before_head,
            "finish_dk": steps.finish_dk,
        },
        _options(tiles),
    )


def _dq_launch(attention: Attention, grad_out: Tensor, state: Tensor, dq: Tensor, descriptor: bool) -> Launch:
    steps = attention.steps
    tiles = attention.config(descriptor).dq
    m = tiles.tile_m
    programs = steps.dq_tiles(_tiles(dq.shape[2], m), _tiles(attention.key.shape[2], tiles.tile_n))
    return Launch(
        dq_kernel,
        programs * dq.shape[0] * dq.shape[1],
        {
            **attention.operands(tiles, descriptor, dO=(grad_out, m), dQ=(dq, m)),
            "mState": state_operand(state, m, descriptor),
        },
        {
            **attention.constants(tiles, descriptor),
            **attention.flags(),
            "kv_head_of": steps.kv_head_of,
            "mask_tail_keys": steps.mask_tail_keys,
            "mask_causal": steps.mask_causal_backward,
            "add_bias": steps.add_bias,
            "score_gradient": steps.score_gradient,
            "finish_dq": steps.finish_dq,
        },
        _options(tiles),
    )


def bias_gradient_launches(attention: Attention, grad_out: Tensor, state: Tensor, grad_bias: Tensor) -> list[Launch]:
    """Writes the gradient of a float mask, in the mask's own 4-D shape, contiguous; state is what backward wrote."""
    steps = attention.steps
    attention = steps.operands(attention)
    descriptor = fits_descriptors(attention.query, attention.key, attention.value, grad_out, state)
    tiles = attention.config(descriptor).dbias
    batches, heads, rows, columns = grad_bias.shape
    launch = Launch(
        dbias_kernel,
        _tiles(rows, tiles.tile_m) * _tiles(columns, tiles.tile_n) * batches * heads,
        {
            **attention.operands(tiles, descriptor, dO=(grad_out, tiles.tile_m)),
            "mState": state_operand(state, tiles.tile_m, descriptor),
            "mdMask": grad_bias,
            "mask_batches": batches,
            "mask_heads": heads,
            "mask_rows": rows,
            "mask_columns": columns,
        },
        {
            **attention.constants(tiles, descriptor),
            "MASK_DTYPE": _TRITON_DTYPES[grad_bias.dtype],
            "kv_head_of": steps.kv_head_of,
            "mask_tail_keys": steps.mask_tail_keys,
            "add_bias": steps.add_bias,
            "score_gradient": steps.score_gradient,
            "sharing_until": steps.sharing_until,
            "sum_of_shared": steps.sum_of_shared,
            "finish_dbias": steps.finish_dbias,
        },
        _options(tiles),
    )
    return [launch]


def empty_row_state(query: Tensor) -> Tensor:
    """Uninitialised scratch of backward, see NOTE [row state] in row_state.py."""
    batches, heads_q, len_q, _ = query.shape
    rows = _tiles(len_q, ROW_TILE.value) * ROW_TILE.value
    return torch.empty((2, batches * heads_q, rows), dtype=torch.float32, device=query.device)


def _tiles(length: int, tile: int) -> int:
    return (length + tile - 1) // tile


def _options(tiles: Tiles) -> dict[str, int]:
    return {"num_warps": tiles.warps, "num_stages": tiles.stages}
