"""Where a gradient of LSE is subtracted from delta: NOTE [statistics] of preprocess.py, row by row."""

import pytest
import torch

from kernels.blocksparse.api import block_sparse_attention
from kernels.blocksparse.launch import backward as launch_backward
from kernels.blocksparse.launch import forward, lse_gradient
from kernels.blocksparse.launch.backward import make_workspace
from kernels.blocksparse.launch.forward import Sequences
from kernels.blocksparse.launch.lse_gradient import subtract
from kernels.blocksparse.lists.bands import causal
from kernels.blocksparse.lists.builder import dense


@pytest.mark.parametrize("tile_m", [64, 128])
@pytest.mark.parametrize("lengths", [[300], [100, 0, 64, 130], [0, 0, 5], [64, 64, 1]])
@pytest.mark.parametrize("packed", [False, True])
def test_every_row_of_every_sequence_and_head_once(tile_m, lengths, packed):
    heads, batch, longest = 3, len(lengths), max(lengths)
    length = torch.tensor(lengths, dtype=torch.int32)
    begin = (length.cumsum(0) - length).to(torch.int32) if packed else torch.zeros_like(length)
    blocks = dense(lengths, lengths, tile_m=tile_m, tile_n=64, backward=False, device="cpu")
    q = torch.zeros((sum(lengths), heads, 32) if packed else (batch, longest, heads, 32), dtype=torch.bfloat16)
    sequences = Sequences(begin, length, begin, length)
    workspace = make_workspace(q, q[..., :1, :], sequences, blocks, False)
    workspace.delta.zero_()
    grad = torch.rand((heads, sum(lengths)) if packed else (batch, heads, longest)) + 1
    subtract(grad, workspace, sequences, blocks, heads)
    stride_batch, total = workspace.tiles
    delta, seen = workspace.delta.view(heads, total, tile_m), torch.zeros(heads, total, tile_m, dtype=torch.bool)
    for b in range(batch):
        for row in range(lengths[b]):
            tile = b * stride_batch + int(begin[b]) // tile_m + row // tile_m
            wanted = grad[:, int(begin[b]) + row] if packed else grad[b, :, row]
            assert not seen[:, tile, row % tile_m].any()
            assert torch.equal(delta[:, tile, row % tile_m], -wanted)
            seen[:, tile, row % tile_m] = True


@pytest.mark.parametrize("with_lse", [False, True])
def test_without_queries_nothing_is_launched_and_gradients_are_zero(monkeypatch, with_lse):
    def launched(variant, *others):
        raise AssertionError(f"{variant.kind}: its workspace was never cleared")

    for module in (forward, launch_backward, lse_gradient):
        monkeypatch.setattr(module, "launch", launched)
    q, k, v = (torch.ones(1, 2, length, 32).bfloat16().requires_grad_() for length in (0, 70, 70))
    found = block_sparse_attention(q, k, v, causal(0, 70, tile_m=64, tile_n=64))
    for grad in torch.autograd.grad(
        found[: 1 + with_lse], (q, k, v), [torch.ones_like(x) for x in found[: 1 + with_lse]]
    ):
        assert not grad.any()
