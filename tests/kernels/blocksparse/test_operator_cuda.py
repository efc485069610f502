"""block_sparse_attention on a GPU, with its compiled kernels: operator checks, tracing, CUDA graphs, no synchronising,
bitwise equal repeats, memory. Skipped where there is none."""

import pytest
import slow_kernels
import torch

from kernels.blocksparse import ops
from kernels.blocksparse.api import block_sparse_attention
from kernels.blocksparse.lists.bands import causal, window
from kernels.blocksparse.lists.from_mask import from_mask
from kernels.blocksparse.lists.intervals import documents
from kernels.blocksparse.lists.schedule import permutation
from kernels.blocksparse.lists.write_order import with_order
from kernels.blocksparse.planner.planner import least_blocking

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def tensors(batch=2, heads_q=4, heads_kv=2, len_q=300, len_k=400, dim=64, packed=False, grad=True):
    shapes = [(batch, heads, length, dim) for heads, length in ((heads_q, len_q), (heads_kv, len_k), (heads_kv, len_k))]
    if packed:
        shapes = [(b * n, h, d) for b, h, n, d in shapes]
    draw = torch.Generator(device="cuda").manual_seed(0)
    made = [torch.randn(s, generator=draw, device="cuda", dtype=torch.bfloat16) for s in shapes]
    return [x.requires_grad_(grad) for x in made]


def some_blocks():
    draw = torch.Generator().manual_seed(1)
    mask = torch.rand(2, 4, 300, 400, generator=draw) < 0.3
    mask[:, 1] = False
    mask[..., 200:, :] = False
    mask[..., :128, :128] = True
    return {
        "bits": from_mask(mask.cuda()),
        "band": causal(300, 400, device="cuda", tile_m=64),
        "intervals": documents([100, 150], 300, 400, device="cuda", tile_n=64),
        "permutation": with_order(
            from_mask(mask.cuda()), permutation(torch.tensor([[[3, 0, 2, 1]]], dtype=torch.int32, device="cuda"))
        ),
        "ragged": window([300, 100], [400, 0], left=50, right=20, device="cuda"),
    }


def gradients(q, k, v, blocks, **options):
    out, lse = block_sparse_attention(q, k, v, blocks, **options)
    draw = torch.Generator(device="cuda").manual_seed(2)
    grads = [torch.randn(x.shape, generator=draw, device="cuda", dtype=x.dtype) for x in (out, lse)]
    grads[1].masked_fill_(lse == -float("inf"), 0.0)
    return (out, lse, *torch.autograd.grad((out, lse), (q, k, v), grads))


def limits(packed):
    """Lengths 300 and 100, 400 and 0."""
    if packed:
        starts = ([0, 300, 400], [0, 400, 400])
        names = ("cu_seqlens_q", "cu_seqlens_k")
    else:
        starts, names = ([300, 100], [400, 0]), ("lengths_q", "lengths_k")
    return {n: torch.tensor(s, dtype=torch.int32, device="cuda") for n, s in zip(names, starts, strict=True)}


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", ["bits", "band", "intervals", "permutation", "ragged", "packed"])
def test_results_are_those_of_the_slow_kernels(name, deterministic, monkeypatch):
    packed = name == "packed"
    q, k, v = tensors()
    options = {"deterministic": deterministic}
    if name in ("ragged", "packed"):
        options |= limits(packed)
    if packed:
        q, k, v = (torch.randn(400, h, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for h in (4, 2, 2))
    blocks = some_blocks()["ragged" if packed else name]
    found = gradients(q, k, v, blocks, **options)
    monkeypatch.setattr(ops.launch, "forward", slow_kernels.forward)
    monkeypatch.setattr(ops, "backward_pass", slow_kernels.backward_pass)
    on_host = [x.detach().cpu().requires_grad_() for x in (q, k, v)]
    draw = torch.Generator(device="cuda").manual_seed(2)
    out, lse = block_sparse_attention(
        *on_host, blocks.to("cpu"), **{n: x.cpu() if torch.is_tensor(x) else x for n, x in options.items()}
    )
    grads = [torch.randn(x.shape, generator=draw, device="cuda", dtype=x.dtype).cpu() for x in (out, lse)]
    grads[1].masked_fill_(lse == -float("inf"), 0.0)
    wanted = (out, lse, *torch.autograd.grad((out, lse), on_host, grads))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.cpu(), other, atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("name", ["bits", "band", "intervals"])
def test_opcheck(name):
    q, k, v = tensors()
    lists, numbers = ops.flatten(some_blocks()[name])
    arguments = (q, k, v, [], lists, numbers, 0.125, 0.0, True, "", "")
    torch.library.opcheck(ops.block_sparse_forward, arguments)


def test_compiles_without_graph_breaks():
    q, k, v = tensors()
    blocks = some_blocks()["bits"]

    def step(q, k, v):
        out, lse = block_sparse_attention(q * 1.5, k, v, blocks, deterministic=True)
        return (out.float() ** 2).sum() + lse.masked_fill(lse == -float("inf"), 0.0).sum()

    eager = torch.autograd.grad(step(q, k, v), (q, k, v))
    traced = torch.autograd.grad(torch.compile(step, fullgraph=True)(q, k, v), (q, k, v))
    for one, other in zip(traced, eager, strict=True):
        torch.testing.assert_close(one, other, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("deterministic", [False, True])
def test_forward_and_backward_in_a_cuda_graph(deterministic):
    q, k, v = tensors(packed=True)
    starts = [torch.tensor([0, n, 2 * n], dtype=torch.int32, device="cuda") for n in (300, 400)]
    blocks = window([300, 300], [400, 400], left=150, right=20, device="cuda", tile_m=64, tile_n=64)
    options = {"cu_seqlens_q": starts[0], "cu_seqlens_k": starts[1], "deterministic": deterministic}
    grad = torch.randn_like(q)

    def step():
        out, _ = block_sparse_attention(q, k, v, blocks, **options)
        return out, *torch.autograd.grad(out, (q, k, v), grad)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for seed in range(3):
        with torch.no_grad():
            q.copy_(torch.randn(q.shape, generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        for one, other in zip(captured, step(), strict=True):
            if deterministic:
                assert torch.equal(one, other)
            torch.testing.assert_close(one, other, atol=2e-2, rtol=2e-2)


def test_ctas_that_stay_begin_anew_at_every_replay():
    """More tiles than multiprocessors, so that the tile counter is read; a graph zeroes them each time."""
    draw = torch.Generator(device="cuda").manual_seed(0)
    q, k, v = (torch.randn(1, 12, 5000, 64, generator=draw, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    blocks = window(5000, 5000, left=700, device="cuda", tile_m=128, tile_n=128)
    assert 12 * blocks.m_blocks > 2 * torch.cuda.get_device_properties(0).multi_processor_count

    def step():
        return block_sparse_attention(q, k, v, blocks)[0]

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for _ in range(3):
        q.copy_(q.roll(1, 1))
        captured.fill_(torch.nan)
        graph.replay()
        assert torch.equal(captured, step())
    wanted = torch.nn.functional.scaled_dot_product_attention(q[:, :1], k[:, :1], v[:, :1], attn_mask=_band(5000, 700))
    torch.testing.assert_close(captured[:, :1], wanted, atol=2e-2, rtol=2e-2)


def _band(tokens, left):
    """The window's mask."""
    away = torch.arange(tokens, device="cuda")[:, None] - torch.arange(tokens, device="cuda")
    return (away >= 0) & (away <= left)


def test_a_known_call_does_not_synchronise():
    q, k, v = tensors()
    blocks = some_blocks()["bits"]
    grads = (torch.randn_like(q), torch.zeros(q.shape[:3], device="cuda"))

    def step():
        for schedule in (None, "descending"):
            outputs = block_sparse_attention(q, k, v, blocks, deterministic=True, schedule=schedule)
            torch.autograd.grad(outputs, (q, k, v), grads)

    step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("schedule", ["ascending", "descending", "planned"])
def test_repeats_are_bitwise_equal_with_more_ctas_than_fit(schedule):
    blocks = causal(4096, 4096, tile_m=64, tile_n=64, device="cuda")
    if schedule == "planned":
        blocks = least_blocking(blocks, heads_q=16, heads_kv=4).blocks
    options = {"schedule": schedule} if schedule != "planned" else {}
    q, k, v = tensors(2, 16, 4, 4096, 4096)
    first = gradients(q, k, v, blocks, deterministic=True, **options)
    for _ in range(10):
        for one, other in zip(gradients(q, k, v, blocks, deterministic=True, **options), first, strict=True):
            assert torch.equal(one, other)


def test_memory_does_not_grow_with_the_square_of_the_length():
    length, heads, dim = 131072, 4, 64
    torch.cuda.empty_cache()
    q, k, v = tensors(1, heads, heads, length, length, dim)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    blocks = window(length, length, left=2047, device="cuda")
    out, _ = block_sparse_attention(q, k, v, blocks, deterministic=True)
    torch.autograd.grad(out, (q, k, v), out.detach())
    peak = torch.cuda.max_memory_allocated() - before
    tensor = length * heads * dim * 2
    print(
        f"peak memory at {length} tokens, window 2048, {heads} heads, dim {dim}: {peak / 2**20:.0f} MiB over the inputs"
    )
    assert peak < 10 * tensor + 2**26  # out, its gradient, dq, dk, dv, fp32 sums (2), statistics
