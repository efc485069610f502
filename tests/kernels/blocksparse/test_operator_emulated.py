"""block_sparse_attention with its compiled kernels on the emulated GPU: the whole way from a user's call to gradients,
also of LSE, under computed schedules, against dense attention in float64."""

from dataclasses import replace

import pytest
import torch
from blocksparse_runs import loaded

pytest.importorskip("cutlass")
pytest.importorskip("llvmlite")

from fuzz.devices.emulator import Emulator
from kernels.blocksparse.api import block_sparse_attention
from kernels.blocksparse.launch import backward as launch_backward
from kernels.blocksparse.launch import forward, lse_gradient
from kernels.blocksparse.lists.bands import causal, window
from kernels.blocksparse.lists.from_mask import from_mask
from kernels.blocksparse.lists.schedule import ASCENDING
from kernels.blocksparse.lists.transpose import in_one_list
from kernels.blocksparse.lists.types import Band, BlockList, BlockLists
from kernels.blocksparse.lists.write_order import with_order
from kernels.blocksparse.planner.planner import least_blocking
from kernels.blocksparse.spec.signature import ordered
from kernels.blocksparse.spec.variant import NO_INJECTION, PAIR, WIDE, arch_for_products


@pytest.fixture(autouse=True)
def _emulated(monkeypatch):
    """Launches run on an emulated GPU with room for three CTAs, and must end."""
    emulator = Emulator(resident_ctas=3)

    def run(variant, device, values, injection=NO_INJECTION):
        arch = arch_for_products(variant.products, "sm_80")
        report = loaded(variant, arch, injection)(*ordered(variant.kind, values), emulator=emulator)
        assert report.status == "finished" and not report.findings, report

    for module in (forward, launch_backward, lse_gradient):
        monkeypatch.setattr(module, "launch", run)


def dense(q, k, v, mask):
    """(out, lse) in float64."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    scores = (q.double() @ k.transpose(2, 3) / q.shape[-1] ** 0.5).masked_fill(~mask, -float("inf"))
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def check(q, k, v, blocks, mask, **options):
    """Outputs and gradients of a sum of both with random weights."""
    draw = torch.Generator().manual_seed(1)
    found = block_sparse_attention(q, k, v, blocks, deterministic=True, **options)
    wanted = dense(q, k, v, mask)
    weights = [torch.randn(x.shape, generator=draw) for x in wanted]
    weights[0] = weights[0].to(q.dtype)
    grads = [torch.autograd.grad(found, (q, k, v), weights)]
    grads.append(torch.autograd.grad(wanted, (q, k, v), [w.double() for w in weights]))
    for one, other in zip((*found, *grads[0]), (*wanted, *grads[1]), strict=True):
        torch.testing.assert_close(one.double(), other.double(), atol=3e-2, rtol=3e-2)


def tensors(len_q, len_k, heads_q=2, heads_kv=1, dim=32):
    draw = torch.Generator().manual_seed(0)
    shapes = (1, heads_q, len_q, dim), (1, heads_kv, len_k, dim), (1, heads_kv, len_k, dim)
    return [torch.randn(shape, generator=draw).to(torch.bfloat16).requires_grad_() for shape in shapes]


def test_causal_with_a_gradient_of_lse():
    mask = torch.ones(150, 150, dtype=torch.bool).tril()
    check(*tensors(150, 150), causal(150, 150, tile_m=64, tile_n=64), mask)


@pytest.mark.nightly
@pytest.mark.parametrize(("tile_m", "products"), [(WIDE, "wgmma"), (PAIR, "tcgen05")])
def test_lists_of_wide_tiles_beside_those_with_gradients(monkeypatch, tile_m, products):
    """The forward pass takes the wide ones where its products have such tiles, and the others where they do not."""
    blocks = causal(300, 300, wide=tile_m)
    launched = []
    run = forward.launch

    def noted(variant, *arguments):
        launched.append((variant.tile_m, variant.products))
        run(variant, *arguments)

    monkeypatch.setattr(forward, "launch", noted)
    mask = torch.ones(300, 300, dtype=torch.bool).tril()
    check(*tensors(300, 300), blocks, mask, products=products)
    check(*tensors(300, 300), blocks, mask)
    other = {"wgmma": "tcgen05", "tcgen05": "wgmma"}[products]
    check(*tensors(300, 300), blocks, mask, products=other)
    assert launched == [(tile_m, products), (128, "mma"), (128, other)]


@pytest.mark.parametrize(
    ("deterministic", "expected"), [(None, True), pytest.param(False, False, marks=pytest.mark.nightly)]
)
def test_a_call_that_leaves_the_adds_open_has_the_faster_ones(monkeypatch, deterministic, expected):
    """Ordered ones for a short causal mask: the bits are those of a deterministic call."""
    q, k, v = tensors(200, 200, dim=128)
    blocks, launched, run = causal(200, 200), [], launch_backward.launch

    def noted(variant, *arguments):
        launched.extend([variant.deterministic] * (variant.kind == "backward"))
        run(variant, *arguments)

    monkeypatch.setattr(launch_backward, "launch", noted)
    both = [
        torch.autograd.grad(
            block_sparse_attention(q, k, v, blocks, deterministic=adds, products="wgmma")[0].sum(), (q, k, v)
        )
        for adds in (deterministic, True)
    ]
    assert launched == [expected, True]
    for one, other in zip(*both, strict=True):
        assert torch.equal(one, other) if expected else torch.allclose(one, other, atol=3e-2)


@pytest.mark.nightly
def test_lists_of_pairs_of_ctas_beside_others(monkeypatch):
    """The backward pass takes them by tcgen05 where its kernel has them, and the others by other products, at other
    dims, and under a schedule of the call."""
    blocks = replace(causal(300, 300), paired=causal(300, 300, tile_n=256))
    launched = []
    run = lse_gradient.launch

    def noted(variant, *arguments):
        launched.extend([variant.tile_n] * (variant.kind == "backward"))
        run(variant, *arguments)

    monkeypatch.setattr(lse_gradient, "launch", noted)
    mask = torch.ones(300, 300, dtype=torch.bool).tril()
    check(*tensors(300, 300, dim=64), blocks, mask, products="tcgen05")
    check(*tensors(300, 300, dim=32), blocks, mask, products="tcgen05")
    check(*tensors(300, 300, dim=64), blocks, mask)
    check(*tensors(300, 300, dim=64), blocks, mask, products="tcgen05", schedule="ascending")
    assert launched == [256, 128, 128, 128]


def test_a_window_in_one_list_whose_rows_descend():
    q, k = torch.arange(400)[:, None], torch.arange(400)[None]
    mask = (k <= q) & (k >= q - 200)
    blocks = in_one_list(window(400, 400, left=200, tile_m=64, tile_n=64))
    one = blocks.backward.partial
    turned = BlockList(one.count, one.index.flip(0), one.index.numel() - one.begin - one.count)
    blocks = replace(blocks, backward=BlockLists(turned, blocks.backward.full), merged=False)
    assert isinstance(blocks.mask, Band) and not blocks.backward.full.count.any()
    check(*tensors(400, 400), with_order(blocks, ASCENDING), mask)


def test_planned_random_blocks():
    draw = torch.Generator().manual_seed(1)
    mask = (torch.rand(7, 7, generator=draw) < 0.4) | torch.eye(7, dtype=torch.bool)
    mask = mask.repeat_interleave(64, 0).repeat_interleave(64, 1)[:400, :400]
    mask &= torch.rand(400, 400, generator=draw) < 0.9
    mask[:64, :64] = True
    mask |= torch.eye(400, dtype=torch.bool)
    blocks = replace(from_mask(mask[None, None], tile_m=64, tile_n=64), merged=False)
    plan = least_blocking(blocks, heads_q=2, heads_kv=1, slots=8)
    rows, planned = (x.backward.partial.index.tolist() for x in (blocks, plan.blocks))
    assert rows != planned and sorted(rows) == sorted(planned)
    assert plan.blocks.schedule.kind == "permutation" and not plan.blocks.merged
    check(*tensors(400, 400), plan.blocks, mask)


@pytest.mark.parametrize(("tile_n", "dim"), [(64, 32), pytest.param(128, 136, marks=pytest.mark.nightly)])
def test_packed_sequences_with_a_gradient_of_lse(tile_n, dim):
    """With gradients of head dim 136, blocks of 128 keys are halved."""
    lengths = [70, 0, 130]
    blocks = causal(lengths, lengths, tile_m=64, tile_n=tile_n)
    starts = torch.tensor([0, 70, 70, 200], dtype=torch.int32)
    mask = torch.zeros(200, 200, dtype=torch.bool)
    for first, last in ((0, 70), (70, 200)):
        mask[first:last, first:last] = torch.ones(last - first, last - first).tril().bool()
    q, k, v = tensors(200, 200, dim=dim)
    rows = [x.detach()[0].transpose(0, 1).contiguous().requires_grad_() for x in (q, k, v)]
    found = block_sparse_attention(*rows, blocks, deterministic=True, cu_seqlens_q=starts, cu_seqlens_k=starts)
    wanted = dense(q, k, v, mask)
    draw = torch.Generator().manual_seed(1)
    weights = [torch.randn(x.shape, generator=draw).to(x.dtype) for x in found]
    grads = torch.autograd.grad(found, rows, weights)
    weights = [weights[0].double().transpose(0, 1)[None], weights[1].double()[None]]
    wanted_grads = torch.autograd.grad(wanted, (q, k, v), weights)
    torch.testing.assert_close(found[0].double().transpose(0, 1)[None], wanted[0], atol=3e-2, rtol=3e-2)
    torch.testing.assert_close(found[1].double()[None], wanted[1], atol=3e-2, rtol=3e-2)
    for one, other in zip(grads, wanted_grads, strict=True):
        torch.testing.assert_close(one.double().transpose(0, 1)[None], other.double(), atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("kind", [pytest.param("bits", marks=pytest.mark.nightly), "band"])
def test_gradients_of_large_head_dims_by_lists_of_128_keys(kind):
    """Each block is halved. The last one of 320 keys has no second half, the first of 130 a short one."""
    for len_q, len_k in ((70, 320), (130, 130)) if kind == "band" else ((70, 320),):
        mask = torch.ones(len_q, len_k, dtype=torch.bool).tril(len_k - len_q)
        blocks = causal(len_q, len_k, align="bottom_right", tile_m=64)
        if kind == "bits":
            mask &= torch.rand(len_q, len_k, generator=torch.Generator().manual_seed(4)) < 0.8
            blocks = from_mask(mask[None, None], tile_m=64)
        assert blocks.tile_n == 128
        check(*tensors(len_q, len_k, dim=136), blocks, mask)
