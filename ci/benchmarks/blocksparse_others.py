"""What blocksparse_beside.py measures beside the block-sparse kernels: FlashAttention-4, cuDNN and FlashInfer.

Each is asked where it imports and has the mask. A way is a call, its leaves and the gradient of its result; where the
leaves are None, it has no backward pass.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from blocksparse_masks import Entry, random_grid
from torch import Tensor

from kernels.blocksparse.lists.types import BlockSparse

Call = Callable[[], Any]
Way = tuple[Call, tuple[Tensor, ...] | None, Tensor]
FLASHINFER_TILE, FLASHINFER_DIM, FLASHINFER_LISTED = 64, 128, 64  # of its kernel for sm_90


@dataclass(frozen=True)
class Problem:
    """A row's operands, (batch, heads, tokens, dim), and lists."""

    entry: Entry
    blocks: BlockSparse
    q: Tensor
    k: Tensor
    v: Tensor
    do: Tensor


def others(problem: Problem) -> dict[str, Way]:
    """name -> way, on the same values."""
    entry, found = problem.entry, dict[str, Way]()
    if entry.packed:
        return {}
    if entry.tile == 128 and imports("flash_attn.cute"):
        by_token = [x.detach().transpose(1, 2).contiguous() for x in (problem.q, problem.k, problem.v, problem.do)]
        leaves = tuple(x.requires_grad_() for x in by_token[:3])
        for name, deterministic in (("FlashAttention-4", False), ("FlashAttention-4 deterministic", True)):
            found[name] = (partial(flash_4, entry, leaves, deterministic), leaves, by_token[3])
    if entry.mask in ("full", "causal"):
        leaves = (problem.q, problem.k, problem.v)
        found["cuDNN"] = (partial(cudnn, entry, *leaves), leaves, problem.do)
    if by_blocks(entry) and imports("cudnn"):
        leaves = (problem.q, problem.k, problem.v)
        found["cuDNN"] = (partial(CudnnBlocks.apply, *leaves, cudnn_lists(entry)), leaves, problem.do)
    if by_blocks(entry) and flashinfer_takes(entry) and imports("flashinfer.cake_vsa_sm90"):
        found["FlashInfer"] = (flashinfer(problem), None, problem.do)
    return found


def imports(name: str) -> bool:
    """True where a module can be imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:  # of the package that it lies in
        return False


def by_blocks(entry: Entry) -> bool:
    """True where the mask keeps or leaves whole blocks."""
    return entry.mask[-1] == "%" or entry.mask.startswith("top")


def flash_4(entry: Entry, leaves: tuple[Tensor, ...], deterministic: bool) -> Tensor:
    """FlashAttention-4's result, (batch, tokens, heads, dim)."""
    from flash_attn.cute import flash_attn_func

    options: dict[str, Any] = {}
    if entry.mask == "causal":
        options = {"causal": True}
    elif entry.mask == "window":
        options = {"window_size": (2047, 0)}
    elif by_blocks(entry):
        options = flash_4_lists(entry)
    result = flash_attn_func(*leaves, deterministic=deterministic, **options)
    return result[0] if isinstance(result, tuple) else result


_LISTS: dict[Entry, dict[str, Any]] = {}


def flash_4_lists(entry: Entry) -> dict[str, Any]:
    """The block lists of a random grid as FlashAttention-4 takes them: all blocks full, with its own ranks."""
    from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch, compute_dq_write_order

    if entry not in _LISTS:
        shape = (entry.batch, entry.heads_q)

        def lists(grid: Tensor) -> Any:
            order = torch.sort(grid.to(torch.uint8), dim=-1, descending=True, stable=True).indices
            count = grid.sum(-1).int().expand(*shape, -1).contiguous()
            index = order.int().expand(*shape, -1, -1).contiguous()
            return BlockSparseTensorsTorch(
                torch.zeros_like(count), torch.zeros_like(index), count, index, block_size=(entry.tile, entry.tile)
            )

        grid = random_grid(entry)
        forward, backward = lists(grid), lists(grid.T.contiguous())
        ranks, ranks_full = compute_dq_write_order(*forward[:4], *backward[:4])
        backward = backward._replace(dq_write_order=ranks, dq_write_order_full=ranks_full, spt=False)
        _LISTS[entry] = {"block_sparse_tensors": forward, "block_sparse_tensors_bwd": backward}
    return _LISTS[entry]


def cudnn(entry: Entry, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """cuDNN's attention through PyTorch."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        grouped = entry.heads_q != entry.heads_kv
        return scaled_dot_product_attention(q, k, v, is_causal=entry.mask == "causal", enable_gqa=grouped)


def cudnn_lists(entry: Entry) -> dict[str, Any]:
    """The block lists of a random grid as `cudnn.BSA` takes them."""
    grid, shape = random_grid(entry), (entry.batch, entry.heads_q)
    count = grid.sum(-1).int()
    order = torch.sort(grid.to(torch.uint8), dim=-1, descending=True, stable=True).indices[:, : int(count.max())]
    return {
        "q2k_block_index": order.int().expand(*shape, -1, -1).contiguous(),
        "q2k_block_nums": count.expand(*shape, -1).contiguous(),
        "sparse_block_size": entry.tile,
    }


class CudnnBlocks(torch.autograd.Function):
    """Block-sparse attention of cuDNN's front end."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, lists: dict[str, Any]) -> Tensor:
        """q, k, v (batch, heads, tokens, dim)."""
        from cudnn.block_sparse_attention.api import block_sparse_attention_forward

        found = block_sparse_attention_forward(q, k, v, **lists)
        ctx.save_for_backward(q, k, v, found["o_tensor"], found["lse_tensor"])
        ctx.lists = lists
        return found["o_tensor"]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """dQ, dK, dV, and nothing for the lists."""
        from cudnn.block_sparse_attention.api import block_sparse_attention_backward

        found = block_sparse_attention_backward(gradients[0], *ctx.saved_tensors, **ctx.lists)
        return found["dq_tensor"], found["dk_tensor"], found["dv_tensor"], None


def flashinfer_takes(entry: Entry) -> bool:
    """True for problems of FlashInfer's variable block-sparse kernel for sm_90."""
    shape = (entry.tile, entry.dim, entry.batch, entry.heads_kv)
    listed = int(random_grid(entry).sum(-1).max())
    return shape == (FLASHINFER_TILE, FLASHINFER_DIM, 1, entry.heads_q) and listed <= FLASHINFER_LISTED


def flashinfer(problem: Problem) -> Call:
    """FlashInfer's forward pass, planned once; its plan is not timed, as our lists are not."""
    from flashinfer.cake_vsa_sm90 import create_plan

    entry = problem.entry
    heads, blocks = entry.heads_q, entry.tokens // entry.tile
    sizes = torch.full((heads, blocks), entry.tile, dtype=torch.int32)
    grid = random_grid(entry).cpu().expand(heads, -1, -1).contiguous()
    # the kernel that its own choice takes for more than six blocks a row
    plan = create_plan(problem.q.device, grid, sizes, sizes, heads, heads, entry.dim, route="persistent")
    return partial(plan.run, *(x.detach()[0] for x in (problem.q, problem.k, problem.v)))
