"""Launches of the Triton kernels, each made from the operands of a call as a value."""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from kernels.nsa.choose import choose_kernel
from kernels.nsa.config import GATE_ROWS, ROWS, WARPS, WIDTHS, padded, tile_rows
from kernels.nsa.gates import combine_kernel, gate_weight_kernel, query_gradient_kernel, split_kernel
from kernels.nsa.means import key_gradient_kernel, mean_kernel
from kernels.nsa.operands import Operands, aligned, strides_of
from kernels.sdpa.launch import INTERPRETED, Launch
from kernels.sdpa.strides import stride_arguments

DTYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


def means(operands: Operands, x: Tensor, out: Tensor, size: int, shift: int = 0) -> Launch:
    """The launch that writes out (batch, stretches, heads, dim) float32 from x, laid out as the operands are."""
    batch, blocks, heads, _ = out.shape
    return Launch(
        mean_kernel,
        batch * blocks * heads,
        {
            "mX": x,
            **stride_arguments("X", strides_of(x)),
            "mOut": out,
            **_sequences(operands),
            "heads": heads,
            "blocks": blocks,
            "size": size,
            "shift": shift,
        },
        {
            **{"divisor": operands.settings.steps.divisor, **_flags(operands), "ALIGNED": aligned(x)},
            "TILE": min(ROWS, _power_of_2(size)),
        },
        {"num_warps": WARPS},
    )


def choose(operands: Operands, found: Tensor, blocks: Tensor, first: int, last: int) -> Launch:
    """The launch that writes the blocks that the tiles from `first` to `last` choose into blocks, of all tiles.

    found  `kernels.nsa.choice.products` of these tiles, contiguous;  blocks: int32 (batch, heads_q, tiles, places)
    """
    s = operands.settings
    width, places = found.shape[-1], blocks.shape[-1]
    padded_width = next(size for size in WIDTHS if size >= max(width, places))
    return Launch(
        choose_kernel,
        operands.batch * operands.heads_q * (last - first) if places else 0,
        {
            **{"mScore": found, "mCu": operands.q if operands.cu is None else operands.cu, "mBlocks": blocks},
            **{"batches": operands.batch, "heads": operands.heads_q, "length": operands.length},
            **{"first": first, "chunk": last - first, "tiles": s.tiles, "width": width},
            **{"group": operands.heads_q // operands.heads_kv, "number": s.chosen, "places": places},
            **{"size": s.block, "per_tile": s.tile, "scale": s.scale},
        },
        {
            **{"allowed": s.steps.may_choose, "chosen_of_equal": s.steps.is_first},
            **{"CAUSAL": s.causal, "PACKED": operands.packed, "INTERPRETED": INTERPRETED, "WIDTH": padded_width},
        },
        {"num_warps": max(padded_width // 1024, 1)},
    )


def key_gradient(operands: Operands, parts: list[Tensor], mean: Tensor, out: Tensor, factor: float) -> Launch:
    """The launch that adds the gradients of K, or of V, of all branches.

    parts  of the selected branch and of the window, contiguous, of out's shape; mean: of the compressed branch, of the
           means (batch, blocks, heads_kv, dim) float32, where `factor` is in it already
    """
    rows = tile_rows(operands.dim)
    tiles = -(-operands.settings.longest // rows)
    return Launch(
        key_gradient_kernel,
        tiles * operands.batch * operands.heads_kv,
        {
            **{"mA": parts[0], "mB": parts[1], "mMean": mean, "mOut": out},
            **_sequences(operands),
            "heads": operands.heads_kv,
            "blocks": mean.shape[1],
            "size": operands.settings.block,
            "longest": operands.settings.longest,
            "factor": factor,
        },
        {
            "share": operands.settings.steps.share_of_mean,
            "add": operands.settings.steps.add,
            "DTYPE": DTYPES[out.dtype],
            **_flags(operands),
            "ALIGNED": aligned(*parts, mean, out),
            "TILE": rows,
        },
        {"num_warps": WARPS},
    )


def combine(operands: Operands, parts: list[Tensor], out: Tensor) -> Launch:
    """The launch that writes out from the outputs of the branches, all (…, heads_q, dim) contiguous."""
    return Launch(
        combine_kernel,
        _programs(operands),
        {**_query(operands), **_weight(operands), "mA": parts[0], "mB": parts[1], "mC": parts[2], "mOut": out}
        | _sizes(operands),
        {
            **_gate_steps(operands),
            **_constants(operands, operands.q, *parts, out),
            "GATED": operands.w_gate is not None,
        },
        {"num_warps": WARPS},
    )


def split(operands: Operands, branch: int, out: Tensor, grad_out: Tensor, part: Tensor, logit: Tensor) -> Launch:
    """The launch that writes part, the gradient of a branch's output `out`, and logit (heads_q, rows) float32."""
    return Launch(
        split_kernel,
        _programs(operands),
        {
            **_query(operands),
            **_weight(operands),
            **{"mO": out, "mdO": grad_out, "mOut": part, "mLogit": logit},
            **stride_arguments("dO", strides_of(grad_out)),
            **_sizes(operands),
        },
        {
            **_gate_steps(operands),
            "logit_gradient": operands.settings.steps.logit_gradient,
            "BRANCH": branch,
            **_constants(operands, operands.q, out, grad_out, part),
        },
        {"num_warps": WARPS},
    )


def query_gradient(operands: Operands, parts: list[Tensor], logits: Tensor | None, out: Tensor, factor: float):
    """The launch that adds the branches' gradients of Q, and that of the gates; logits (3, heads_q, rows) float32."""
    steps = operands.settings.steps
    return Launch(
        query_gradient_kernel,
        _programs(operands),
        {
            **{"mA": parts[0], "mB": parts[1], "mC": parts[2]},
            **_weight(operands),
            **{"mLogit": out if logits is None else logits, "mOut": out},
            **_sizes(operands),
            "factor": factor,
        },
        {"gate_row": steps.gate_row, "add": steps.add, "GATED": logits is not None} | _constants(operands, *parts, out),
        {"num_warps": WARPS},
    )


def gate_weight_parts(operands: Operands) -> Tensor:
    """What `gate_weight_gradient` writes, float32 (parts, heads_q, 3, dim): its sum over parts is the gradient."""
    parts = -(-operands.rows // GATE_ROWS)
    shape = (parts, operands.heads_q, 3, operands.dim)
    return torch.empty(shape, dtype=torch.float32, device=operands.q.device)


def gate_weight_gradient(operands: Operands, logits: Tensor, parts: Tensor) -> Launch:
    """The launch that adds up the gradient of W_gate over GATE_ROWS rows each."""
    return Launch(
        gate_weight_kernel,
        parts.shape[0] * operands.heads_q,
        {**_query(operands), "mLogit": logits, "mOut": parts, **_sizes(operands), "part": GATE_ROWS},
        {"TILE": ROWS, "BLOCK_D": padded(operands.dim)},
        {"num_warps": WARPS},
    )


def _programs(operands: Operands) -> int:
    """Tiles of each head of each batch entry, of which a packed call has one."""
    entries = 1 if operands.packed else operands.batch
    return entries * -(-operands.length // tile_rows(operands.dim)) * operands.heads_q


def _query(operands: Operands) -> dict[str, Any]:
    return {"mQ": operands.q, **stride_arguments("Q", strides_of(operands.q))}


def _weight(operands: Operands) -> dict[str, Any]:
    return {"mW": operands.q if operands.w_gate is None else operands.w_gate}


def _sizes(operands: Operands) -> dict[str, Any]:
    return {
        "rows": operands.rows,
        "length": max(operands.length, 1),
        "heads": operands.heads_q,
        "dim": operands.dim,
    }


def _gate_steps(operands: Operands) -> dict[str, Any]:
    return {"gate_row": operands.settings.steps.gate_row, "gate_of": operands.settings.steps.gate_of}


def _constants(operands: Operands, *tensors: Tensor) -> dict[str, Any]:
    """tensors: those whose rows the kernel holds."""
    return {
        "DTYPE": DTYPES[operands.q.dtype],
        "INTERPRETED": INTERPRETED,
        "ALIGNED": aligned(*tensors),
        "TILE": tile_rows(operands.dim),
        "BLOCK_D": padded(operands.dim),
    }


def _sequences(operands: Operands) -> dict[str, Any]:
    return {
        "mCu": operands.q if operands.cu is None else operands.cu,
        "batches": operands.batch,
        "length": operands.length,
        "dim": operands.dim,
    }


def _flags(operands: Operands) -> dict[str, Any]:
    return {"PACKED": operands.packed, "INTERPRETED": INTERPRETED, "BLOCK_D": padded(operands.dim)}


def _power_of_2(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()
