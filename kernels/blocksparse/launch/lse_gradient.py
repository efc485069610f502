"""The backward pass where LSE has a gradient too.

dS = P (dP - delta) with delta = sum over d of dO·O; a gradient of LSE adds P dLSE, so it is the same pass with delta -
dLSE. That is subtracted between preprocess, which writes delta, and the kernel that reads it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.blocksparse.compile.runtime import launch
from kernels.blocksparse.launch import backward as launch_backward
from kernels.blocksparse.launch.backward import (
    Workspace,
    backward_launches,
    backward_lists,
    fastest_products,
    make_workspace,
)
from kernels.blocksparse.launch.faster_adds import ordered_adds_are_faster
from kernels.blocksparse.launch.forward import Sequences
from kernels.blocksparse.lists.types import BlockSparse
from kernels.blocksparse.spec.injection import NO_HOST_INJECTION, HostInjection
from kernels.blocksparse.spec.variant import Injection


def backward_pass(
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
    grad_lse: Tensor | None,
    scale: float,
    softcap: float | None,
    deterministic: bool | None,
    injection: Injection,
    host: HostInjection = NO_HOST_INJECTION,
    products: str | None = None,
) -> None:
    """`launch_backward.backward` with the lists of `backward_lists`, and grad_lse: the gradient of lse, float32 and of
    its shape, any strides, or None. deterministic: None for the faster adds."""
    blocks = backward_lists(q, blocks, products)
    if deterministic is None:
        deterministic = ordered_adds_are_faster(q, k, blocks, products or fastest_products(q), softcap is not None)
    tensors = (dq, dk, dv, q, k, v, o, lse, do, sequences, blocks)
    if grad_lse is None or not grad_lse.numel():  # without queries LSE has none either
        launch_backward.backward(
            *tensors,
            scale=scale,
            softcap=softcap,
            deterministic=deterministic,
            injection=injection,
            host=host,
            products=products,
        )
        return
    workspace = make_workspace(q, k, sequences, blocks, deterministic, products=products)
    launches = backward_launches(
        *tensors, workspace, scale=scale, softcap=softcap, deterministic=deterministic, products=products
    )
    for variant, values in launches:
        injected = injection.part(variant.kind)
        launch(host.kernel(variant, values), q.device, host.changed(variant, values), injected)
        if variant.kind == "preprocess":
            subtract(grad_lse, workspace, sequences, blocks, q.shape[-2])


def subtract(grad_lse: Tensor, workspace: Workspace, sequences: Sequences, blocks: BlockSparse, heads_q: int) -> None:
    """delta -= grad_lse, for every row that there is: (batch, heads_q, len_q), or packed (heads_q, total)."""
    stride_batch, total = workspace.tiles
    delta = workspace.delta.view(heads_q, total * blocks.tile_m)
    if grad_lse.dim() == 3:
        delta = delta.view(heads_q, sequences.batch, stride_batch * blocks.tile_m)[:, :, : grad_lse.shape[2]]
        delta -= grad_lse.transpose(0, 1)
        return
    assert sequences.q_begin is not None  # packed ones have tensors
    row = torch.arange(grad_lse.shape[1], device=grad_lse.device)
    ends = (sequences.q_begin + sequences.q_length).to(torch.int64)
    batch = torch.searchsorted(ends, row, right=True).clamp_(max=sequences.batch - 1)
    begin = sequences.q_begin[batch].to(torch.int64)
    tile = batch * stride_batch + begin // blocks.tile_m
    delta[:, tile * blocks.tile_m + row - begin] -= grad_lse
