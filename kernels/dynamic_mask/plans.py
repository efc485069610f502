"""Which kernels a forward or backward pass consists of, with which arguments."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.dynamic_mask.attention import TRITON_DTYPES, Attention
from kernels.dynamic_mask.bias_gradient import dbias_kernel
from kernels.dynamic_mask.config import Tiles, splits_of
from kernels.dynamic_mask.dkdv import dkdv_kernel
from kernels.dynamic_mask.dq import dq_kernel
from kernels.dynamic_mask.forward import forward_kernel
from kernels.dynamic_mask.row_state import row_state_kernel
from kernels.dynamic_mask.tile_lists import Marks, TileLists
from kernels.sdpa.launch import INTERPRETED, Launch
from kernels.sdpa.strides import stride_arguments


@dataclass(frozen=True)
class Gradients:
    """What backward writes, and how.

    dq, dk, dv  of their inputs' shapes and dtypes; dk and dv with a first axis of parts, float32, where `split`
    dbias       None where its gradient is not made
    sums        float32 (splits, batch, heads_kv, max_k), where dBias is made of columns' sums of dS, else None
    splits      programs that share a tile of keys
    """

    dq: Tensor
    dk: Tensor
    dv: Tensor
    dbias: Tensor | None
    sums: Tensor | None
    state: Tensor
    tiles: Tensor
    splits: int
    deterministic: bool

    @property
    def split(self) -> bool:
        return self.splits > 1


def empty_outputs(attention: Attention) -> tuple[Tensor, Tensor, Tensor]:
    """(out, lse, tiles), uninitialised; tiles (batch, heads_q, tiles of queries, 2) int32."""
    query, heads = attention.query, attention.heads_q
    out = torch.empty((*query.shape[:-1], attention.value.shape[-1]), dtype=query.dtype, device=query.device)
    lse = torch.empty(query.shape[:-1], dtype=torch.float32, device=query.device)
    blocks = tiles_of(attention.max_q, attention.config.forward.tile_m)
    return out, lse, torch.empty((attention.batches, heads, blocks, 2), dtype=torch.int32, device=query.device)


def empty_gradients(attention: Attention, want_bias: bool, num_splits: int, deterministic: bool) -> Gradients:
    """Uninitialised, but for sums that programs add to in any order, which are 0."""
    query, key, value, bias = attention.query, attention.key, attention.value, attention.bias
    config = attention.config.dkdv
    blocks = tiles_of(attention.max_k, config.tile_n)
    steps = tiles_of(attention.max_q, config.tile_m) * (attention.heads_q // max(attention.heads_kv, 1))
    splits = splits_of(blocks * attention.batches * attention.heads_kv, steps, num_splits)

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=query.device)

    def part(x: Tensor) -> Tensor:
        if splits == 1:
            return empty(*x.shape, dtype=x.dtype)
        return empty(splits, *x.shape) if deterministic else torch.zeros(x.shape, device=x.device)[None]

    dbias = sums = None
    if bias is not None and want_bias:
        dbias = empty(*bias.shape, dtype=bias.dtype)
        if bias.shape[2] == 1 and bias.shape[3] == attention.max_k and bias.shape[1] in (1, attention.heads_kv):
            sums = empty(splits, attention.batches, attention.heads_kv, attention.max_k)
    return Gradients(
        empty(*query.shape, dtype=query.dtype),
        part(key),
        part(value),
        dbias,
        sums,
        empty(2, *query.shape[:-1]),
        empty(attention.batches, attention.heads_kv, blocks * splits, 2, dtype=torch.int32),
        splits,
        deterministic,
    )


def forward_launches(attention: Attention, out: Tensor, lse: Tensor, tiles: Tensor) -> list[Launch]:
    """Writes out and lse (contiguous), and the numbers of visited and skipped tiles."""
    steps, config = attention.steps, attention.config.forward
    aligned, lists = attention.aligned(out), Marks(attention, steps.any_key_forward).lists(config)
    launch = Launch(
        forward_kernel,
        tiles_of(attention.max_q, config.tile_m) * attention.batches * attention.heads_q,
        {
            **attention.named(Q=attention.query, K=attention.key, V=attention.value, O=out),
            **attention.planes(),
            **lists.arguments,
            **attention.sizes(),
            "mLSE": lse,
            "mTiles": tiles,
        },
        {
            **attention.flags(aligned),
            **_tile_sizes(config),
            "BIAS": attention.bias is not None,
            "load_mask": steps.load_mask,
            "list_of": steps.list_of,
            "kv_head_of": steps.kv_head_of,
            "store_lse": steps.store_lse,
        },
        _options(config),
    )
    return steps.launches([*lists.launches, launch])


def backward_launches(
    attention: Attention, grad_out: Tensor, grad_lse: Tensor | None, out: Tensor, lse: Tensor, grads: Gradients
) -> list[Launch]:
    """Writes the row state, then everything in `grads`; `finished` makes the answers of its parts."""
    grad_lse, marks = attention.steps.lse_gradient(grad_lse), Marks(attention, attention.steps.any_key_backward)
    launches = [
        _row_state_launch(attention, grad_out, grad_lse, out, lse, grads.state),
        *_dkdv_launches(attention, grad_out, grads, marks.lists(attention.config.dkdv, of_keys=True)),
        *_dq_launches(attention, grad_out, grads, marks.lists(attention.config.dq)),
    ]
    if grads.dbias is not None and grads.sums is None:
        launches.append(_dbias_launch(attention, grad_out, grads.state, grads.dbias))
    return attention.steps.launches(launches)


def finished(attention: Attention, grads: Gradients) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """(dQ, dK, dV, dBias) after the launches: parts are added in float32 and rounded once."""
    steps, dk, dv, dbias = attention.steps, grads.dk, grads.dv, grads.dbias
    if grads.split:
        dk = steps.sum_of_parts(dk).to(attention.key.dtype)
        dv = steps.sum_of_parts(dv).to(attention.value.dtype)
    if dbias is not None and grads.sums is not None:
        dbias = steps.shared_sum(steps.sum_of_parts(grads.sums), tuple(dbias.shape)).to(dbias.dtype)
    return grads.dq, dk, dv, dbias


def _row_state_launch(
    attention: Attention, grad_out: Tensor, grad_lse: Tensor | None, out: Tensor, lse: Tensor, state: Tensor
) -> Launch:
    config = attention.config.dq
    heads = attention.steps.state_heads(attention.heads_q, attention.heads_kv)
    sizes = attention.sizes()
    aligned = attention.aligned(out, grad_out)
    return Launch(
        row_state_kernel,
        tiles_of(attention.max_q, config.tile_m) * attention.batches * heads,
        {
            **attention.named(O=out, dO=grad_out),
            "mLSE": lse,
            **attention.named(dLSE=lse if grad_lse is None else grad_lse),
            "mState": state,
            **{name: sizes[name] for name in ("mCuQ", "mCuK", "batches", "len_q", "len_k", "rows", "dim_v")},
            "heads_q": heads,
            "planes": lse.numel(),
            "len_dlse": 0 if grad_lse is None else attention.max_q,
        },
        {
            "PACKED": attention.packed,
            "ALIGNED": aligned,
            "INTERPRETED": INTERPRETED,
            "TILE_M": config.tile_m,
            "BLOCK_D": attention.block,
        },
        {"num_warps": config.warps},
    )


def _dkdv_launches(attention: Attention, grad_out: Tensor, grads: Gradients, lists: TileLists) -> list[Launch]:
    steps, config = attention.steps, attention.config.dkdv
    parts = {"dK": grads.dk, "dV": grads.dv}
    operands = attention.named(Q=attention.query, K=attention.key, V=attention.value, dO=grad_out)
    for name, part in parts.items():
        pitch, *strides = part.stride() if grads.split else (0, *part.stride())
        first = 0 if attention.packed else strides[0]
        steps_of = (first, *strides[1:], pitch if grads.deterministic else 0)
        operands |= {f"m{name}": part, **stride_arguments(name, steps_of)}
    aligned = attention.aligned(grad_out, *([] if grads.split else parts.values()))
    launch = Launch(
        dkdv_kernel,
        tiles_of(attention.max_k, config.tile_n) * grads.splits * attention.batches * attention.heads_kv,
        {
            **operands,
            **attention.planes(),
            **lists.arguments,
            **attention.sizes(),
            "mState": grads.state,
            "mdBias": grads.state if grads.sums is None else grads.sums,
            "mTiles": grads.tiles,
            "planes": grads.state.numel() // 2,
            "splits": grads.splits,
        },
        {
            **attention.flags(aligned),
            **_tile_sizes(config),
            "BIAS": attention.bias is not None,
            "COLUMN_SUMS": grads.sums is not None,
            "SPLIT": grads.split,
            "ATOMIC": grads.split and not grads.deterministic,
            "load_mask": steps.load_mask,
            "score_gradient": steps.score_gradient,
            "heads_of": steps.heads_of,
            "finish_dk": steps.finish_dk,
        },
        _options(config),
    )
    return [*lists.launches, launch]


def _dq_launches(attention: Attention, grad_out: Tensor, grads: Gradients, lists: TileLists) -> list[Launch]:
    steps, config = attention.steps, attention.config.dq
    aligned = attention.aligned(grad_out, grads.dq)
    operands = attention.named(Q=attention.query, K=attention.key, V=attention.value, dO=grad_out, dQ=grads.dq)
    launch = Launch(
        dq_kernel,
        tiles_of(attention.max_q, config.tile_m) * attention.batches * attention.heads_q,
        {
            **operands,
            **attention.planes(),
            **lists.arguments,
            **attention.sizes(),
            "mState": grads.state,
            "planes": grads.state.numel() // 2,
        },
        {
            **attention.flags(aligned),
            **_tile_sizes(config),
            "BIAS": attention.bias is not None,
            "load_mask": steps.load_mask,
            "kv_head_of": steps.kv_head_of,
            "score_gradient": steps.score_gradient,
            "finish_dq": steps.finish_dq,
        },
        _options(config),
    )
    return [*lists.launches, launch]


def _dbias_launch(attention: Attention, grad_out: Tensor, state: Tensor, dbias: Tensor) -> Launch:
    steps, config = attention.steps, attention.config.dbias
    batches, heads, rows, columns = dbias.shape
    sizes: dict[str, Any] = {
        "bias_batches": batches,
        "bias_heads": heads,
        "bias_rows": rows,
        "bias_columns": columns,
    }
    return Launch(
        dbias_kernel,
        tiles_of(rows, config.tile_m) * tiles_of(columns, config.tile_n) * batches * heads,
        {
            **attention.named(Q=attention.query, K=attention.key, V=attention.value, dO=grad_out),
            **attention.planes(),
            **attention.sizes(),
            **sizes,
            "mState": state,
            "mdBias": dbias,
            "planes": state.numel() // 2,
        },
        {
            **attention.flags(attention.aligned(grad_out)),
            **_tile_sizes(config),
            "BIAS_DTYPE": TRITON_DTYPES[dbias.dtype],
            "load_mask": steps.load_mask,
            "any_key": steps.any_key_backward,
            "kv_head_of": steps.kv_head_of,
            "score_gradient": steps.score_gradient,
            "shared_batches": steps.shared_batches,
            "shared_heads": steps.shared_heads,
            "sum_of_shared": steps.sum_of_shared,
        },
        _options(config),
    )


def tiles_of(length: int, tile: int) -> int:
    """Tiles that cover a length."""
    return (length + tile - 1) // tile


def _tile_sizes(tiles: Tiles) -> dict[str, int]:
    return {"TILE_M": tiles.tile_m, "TILE_N": tiles.tile_n}


def _options(tiles: Tiles) -> dict[str, int]:
    return {"num_warps": tiles.warps, "num_stages": tiles.stages}
