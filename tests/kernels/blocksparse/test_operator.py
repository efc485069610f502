"""block_sparse_attention as a PyTorch operator: what it refuses, its autograd, tracing. Launches are those of
slow_kernels.py, on the CPU; the compiled kernels have tests of their own."""

import gc
from dataclasses import astuple, replace

import pytest
import slow_kernels
import torch
from covering import covering, daily, nightly_unless
from torch.nn.functional import scaled_dot_product_attention

from kernels.blocksparse import call_checks as kept
from kernels.blocksparse import ops
from kernels.blocksparse.api import block_sparse_attention
from kernels.blocksparse.lists.bands import causal, window
from kernels.blocksparse.lists.builder import dense as dense_lists
from kernels.blocksparse.lists.from_mask import from_mask
from kernels.blocksparse.lists.intervals import documents, intervals
from kernels.blocksparse.lists.schedule import ALIKE, DESCENDING, Schedule, permutation
from kernels.blocksparse.lists.types import BlockSparse, Intervals
from kernels.blocksparse.lists.write_order import with_order


@pytest.fixture(autouse=True)
def _slow_launches(monkeypatch):
    monkeypatch.setattr(ops.launch, "forward", slow_kernels.forward)
    monkeypatch.setattr(ops, "backward_pass", slow_kernels.backward_pass)


def tensors(batch=2, heads_q=4, heads_kv=2, len_q=100, len_k=130, dim=16, dtype=torch.bfloat16, grad=True):
    generator = torch.Generator().manual_seed(0)
    shapes = (batch, heads_q, len_q, dim), (batch, heads_kv, len_k, dim), (batch, heads_kv, len_k, dim)
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_(grad) for shape in shapes]


def some_mask(batch=2, heads=4, len_q=100, len_k=130):
    mask = torch.rand(batch, heads, len_q, len_k, generator=torch.Generator().manual_seed(1)) < 0.3
    mask[:, 1] = False
    mask[..., 70:, :] = False
    mask[..., :64, :64] = True
    return mask


def reference(q, k, v, mask):
    out = scaled_dot_product_attention(q.double(), k.double(), v.double(), mask, enable_gqa=True)
    return out.masked_fill(~mask.any(-1, keepdim=True), 0.0)


def test_out_lse_and_gradients_are_those_of_dense_attention():
    q, k, v = tensors()
    mask = some_mask()
    out, lse = block_sparse_attention(q, k, v, from_mask(mask, tile_m=64, tile_n=64))
    wanted = reference(q, k, v, mask)
    assert out.dtype == q.dtype and lse.dtype == torch.float32
    torch.testing.assert_close(out.double(), wanted, atol=1e-2, rtol=1e-2)
    scores = (q.double() @ k.double().repeat_interleave(2, 1).transpose(2, 3) / 4).masked_fill(~mask, -float("inf"))
    torch.testing.assert_close(lse.double(), scores.logsumexp(-1))
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(out.dtype)
    found = torch.autograd.grad(out, (q, k, v), grad)
    wanted_grads = torch.autograd.grad(wanted, (q, k, v), grad.double())
    for one, other in zip(found, wanted_grads, strict=True):
        torch.testing.assert_close(one, other.nan_to_num(0.0), atol=2e-2, rtol=2e-2)


def test_lse_is_differentiable():
    q, k, v = tensors()
    _, lse = block_sparse_attention(q, k, v, causal(100, 130, tile_m=64, tile_n=64))
    found = torch.autograd.grad(lse.sum(), (q, k, v))
    scores = q.double() @ k.double().repeat_interleave(2, 1).transpose(2, 3) / 4
    scores = scores.masked_fill(~torch.ones(100, 130, dtype=torch.bool).tril(), -float("inf"))
    wanted = torch.autograd.grad(scores.logsumexp(-1).sum(), (q, k))
    for one, other in zip(found, wanted, strict=False):
        torch.testing.assert_close(one, other, atol=2e-2, rtol=2e-2)
    assert not found[2].any()


def test_packed_sequences_are_padded_ones():
    lengths_q, lengths_k = [100, 0, 17], [30, 64, 130]
    q, k, v = tensors(3, len_q=100, len_k=130, grad=False)
    blocks = window(lengths_q, lengths_k, left=40, right=10, tile_m=64, tile_n=64)
    limits = [torch.tensor(lengths, dtype=torch.int32) for lengths in (lengths_q, lengths_k)]
    padded, padded_lse = block_sparse_attention(q, k, v, blocks, lengths_q=limits[0], lengths_k=limits[1])
    packed = [
        torch.cat([x[b, :, :n].transpose(0, 1) for b, n in enumerate(lengths)])
        for x, lengths in ((q, lengths_q), (k, lengths_k), (v, lengths_k))
    ]
    starts = [torch.nn.functional.pad(x.cumsum(0, dtype=torch.int32), (1, 0)) for x in limits]
    out, lse = block_sparse_attention(*packed, blocks, cu_seqlens_q=starts[0], cu_seqlens_k=starts[1])
    assert torch.equal(out[:100].transpose(0, 1), padded[0]) and torch.equal(lse[:, :100], padded_lse[0])
    assert torch.equal(out[100:].transpose(0, 1), padded[2, :, :17]) and torch.equal(
        lse[:, 100:], padded_lse[2, :, :17]
    )
    assert not padded[1].any() and bool((padded_lse[1] == -float("inf")).all())
    assert not padded[2, :, 17:].any()


@pytest.mark.parametrize(
    ("name", "deterministic"),
    [
        nightly_unless(not case.marks and case.values[0] in ("intervals", "permutation", "packed"), *case.values)
        for case in covering(
            ["bits", "intervals", "band", "permutation", "packed", "ragged"], [False, True, None], strength=1
        )
    ],
)
def test_opcheck(name, deterministic):
    q, k, v = tensors(1, 2, 1, 70, 70)
    blocks = from_mask(some_mask(1, 2, 70, 70), tile_m=64, tile_n=64)
    lengths = []
    if name == "intervals":
        blocks = documents([10, 40], 70, 70, tile_m=64, tile_n=64)
    if name == "band":
        blocks = causal(70, 70, tile_m=64, tile_n=64)
    if name == "permutation":
        blocks = with_order(blocks, permutation(torch.tensor([[[1, 0]]], dtype=torch.int32)))
    if name == "packed":
        q, k, v = (x.detach()[0].transpose(0, 1).contiguous().requires_grad_() for x in (q, k, v))
        lengths = [torch.tensor([0, 70], dtype=torch.int32)] * 2
    if name == "ragged":
        lengths = [torch.tensor([70], dtype=torch.int32)] * 2
    lists, numbers = ops.flatten(blocks)
    arguments = (q, k, v, lengths, lists, numbers, 0.25, 0.0, deterministic, "")
    torch.library.opcheck(ops.block_sparse_forward, (*arguments, "mma"))
    out, lse = ops.block_sparse_forward(*arguments, "mma")
    arguments = (torch.ones_like(out), None, q, k, v, out.detach(), lse.detach(), *arguments[3:], "mma")
    torch.library.opcheck(ops.block_sparse_backward, tuple(x.detach() if torch.is_tensor(x) else x for x in arguments))


def test_compiles_without_graph_breaks():
    q, k, v = tensors(1, 2, 1, 70, 70)
    blocks = causal(70, 70, tile_m=64, tile_n=64)

    def step(q, k, v):
        out, lse = block_sparse_attention(q, k, v, blocks, deterministic=True)
        return out.float().sum() + lse.sum()

    eager = torch.autograd.grad(step(q, k, v), (q, k, v))
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    traced = torch.autograd.grad(compiled(q, k, v), (q, k, v))
    for one, other in zip(traced, eager, strict=True):
        assert torch.equal(one, other)


def test_compiles_where_lists_are_halved_for_gradients():
    """Head dim 136, lists over tiles of 128 keys: halved within the graph."""
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 70, 136, generator=draw).to(torch.float16).requires_grad_() for _ in range(3))
    blocks = causal(70, 70, tile_n=128)

    def step(q, k, v):
        return block_sparse_attention(q, k, v, blocks, deterministic=True)[0]

    found = torch.compile(step, fullgraph=True, backend="aot_eager")(q, k, v)
    grads = [torch.autograd.grad(out.sum(), (q, k, v)) for out in (found, step(q, k, v))]
    assert all(torch.equal(*pair) for pair in zip(*grads, strict=True))


def test_compiles_with_another_schedule_and_blocks_as_an_argument():
    q, k, v = tensors(1, 2, 1, 70, 70, grad=False)
    blocks = from_mask(some_mask(1, 2, 70, 70), tile_m=64, tile_n=64)
    compiled = torch.compile(
        lambda q, k, v, blocks: block_sparse_attention(q, k, v, blocks, schedule="descending", softcap=3.0),
        fullgraph=True,
        backend="aot_eager",
    )
    eager = block_sparse_attention(q, k, v, blocks, softcap=3.0)
    for one, other in zip(compiled(q, k, v, blocks), eager, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("form", daily(["padded", "packed"], ["packed"]))
def test_compiles_with_dynamic_shapes(form):
    call = good() if form == "padded" else packed()

    def step(q, k, v, scale, *lengths):
        names = ("cu_seqlens_q", "cu_seqlens_k")[: len(lengths)]
        return block_sparse_attention(
            q, k, v, call["blocks"], scale=scale, softcap=2 * scale, **dict(zip(names, lengths, strict=True))
        )

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=True)
    arguments = (
        call["q"],
        call["k"],
        call["v"],
        0.3,
        *(call[x] for x in ("cu_seqlens_q", "cu_seqlens_k") if x in call),
    )
    for one, other in zip(compiled(*arguments), step(*arguments), strict=True):
        assert torch.equal(one, other)


def test_lists_survive_the_way_through_the_operator():
    for blocks in (
        from_mask(some_mask(), tile_m=64, tile_n=128, backward=False),
        with_order(from_mask(some_mask()), permutation(torch.tensor([[[1, 0]]], dtype=torch.int32))),
        causal(70, 70, schedule=DESCENDING),
        documents([10], 70, 70),
        replace(causal(70, 70), wide=from_mask(some_mask(), tile_m=192, backward=False)),
        replace(causal(70, 70), paired=causal(70, 70, tile_n=256)),
        replace(
            causal(70, 70), wide=causal(70, 70, tile_m=192, backward=False), paired=from_mask(some_mask(), tile_n=256)
        ),
        dense_lists(70, 70),
        causal(70, 70, schedule=Schedule("descending", None, 3, 2)),
        causal(70, 70, schedule=Schedule("descending", reverses=True)),
        with_order(causal(70, 140), replace(permutation(starts(1, 0).view(1, 1, 2)), own_first=True, reverses=True)),
    ):
        lists, numbers = ops.flatten(blocks)
        back = ops.unflatten(lists, numbers)
        again, numbers_again = ops.flatten(back)
        assert numbers_again == numbers
        assert len(again) == len(lists) and all(one is other for one, other in zip(again, lists, strict=True))
        assert (back.tile_m, back.tile_n, back.schedule.kind) == (blocks.tile_m, blocks.tile_n, blocks.schedule.kind)
        made, given = (astuple(replace(x.schedule, positions=None)) for x in (back, blocks))
        assert made == given
        assert isinstance(back, BlockSparse) and type(back.mask) is type(blocks.mask)


def good():
    q, k, v = tensors(grad=False)
    return {"q": q, "k": k, "v": v, "blocks": causal(100, 130, tile_m=64, tile_n=64)}


def starts(*values):
    return torch.tensor(values, dtype=torch.int32)


def packed(**more):
    q, k, v = (torch.zeros(20, heads, 16, dtype=torch.float16) for heads in (4, 2, 2))
    call = {"q": q, "k": k, "v": v, "blocks": causal([5, 15], [15, 5])}
    return call | {"cu_seqlens_q": starts(0, 5, 20), "cu_seqlens_k": starts(0, 15, 20)} | more


WRONG = {
    "q: needs a tensor, got NoneType": lambda: good() | {"q": None},
    "q: needs bfloat16": lambda: good() | {"q": torch.zeros(2, 4, 100, 16)},
    "q: needs 4 dimensions": lambda: good() | {"q": good()["q"][0]},
    "q: needs 3 dimensions": lambda: good() | {"cu_seqlens_q": starts(0, 1), "cu_seqlens_k": starts(0, 1)},
    "k: needs q's torch.bfloat16": lambda: good() | {"k": good()["k"].half()},
    "v: needs k's shape": lambda: good() | {"v": good()["v"][:, :, :-1]},
    "k: needs q's batch and dim": lambda: good() | {"k": good()["k"][:1], "v": good()["v"][:1]},
    "q: needs a head dim from 8 to 256": lambda: (
        good() | {x: torch.zeros(2, 2, 130, 12, dtype=torch.bfloat16) for x in ("q", "k", "v")}
    ),
    "k: needs at most 1073741823 rows, got 1073741824": lambda: (
        good() | {x: torch.zeros(2, 2, 1, 16, dtype=torch.bfloat16).expand(-1, -1, 1 << 30, -1) for x in ("k", "v")}
    ),
    "k: needs heads that divide q's 3": lambda: good() | {"q": good()["q"][:, :3]},
    "scale: needs a finite number, positive, .* got 0": lambda: good() | {"scale": 0.0},
    "scale: needs a finite number, positive, .* got -1": lambda: good() | {"scale": -1.0},
    "softcap: needs a finite number, 0 or positive, .* got inf": lambda: good() | {"softcap": float("inf")},
    "scale: needs a number, got Tensor": lambda: good() | {"scale": torch.tensor(0.5, requires_grad=True)},
    "scale: needs a finite number, .* normal in float32, got 1e[+]39": lambda: good() | {"scale": 1e39},
    "softcap: needs a number, got NoneType": lambda: good() | {"softcap": None},
    "softcap: needs a finite number, .* normal in float32, got 1e-40": lambda: good() | {"softcap": 1e-40},
    "blocks: needs a BlockSparse": lambda: good() | {"blocks": None},
    "blocks.schedule: needs a Schedule, got str": lambda: (
        good() | {"blocks": replace(causal(100, 130), schedule="descending")}
    ),
    "blocks.forward: needs a BlockLists, got tuple": lambda: (
        packed() | {"blocks": replace(causal([5, 15], [15, 5]), forward=())}
    ),
    r"blocks\.forward\.partial\.count: needs shape": lambda: good() | {"blocks": causal(400, 130)},
    "schedule: needs 'ascending'": lambda: good() | {"schedule": "spt"},
    "schedule: needs 'ascending', .* got array": lambda: good() | {"schedule": starts(0, 1, 2).numpy()},
    "schedule.positions: needs a Tensor, got list": lambda: good() | {"schedule": permutation([0, 1, 2])},
    r"schedule\.positions: needs every n_block": lambda: good() | {"schedule": starts(0, 0, 1).view(1, 1, 3)},
    "cu_seqlens_q: needs cu_seqlens_k": lambda: packed(cu_seqlens_k=None),
    "lengths_q: needs None": lambda: packed(lengths_q=starts(5, 15)),
    "cu_seqlens_q: needs int32": lambda: packed(cu_seqlens_q=starts(0, 5, 20).long()),
    r"cu_seqlens_k: needs shape \(3,\)": lambda: packed(cu_seqlens_k=starts(0, 20)),
    "cu_seqlens_q: needs to ascend from 0 to 20": lambda: packed(cu_seqlens_q=starts(0, 5, 21)),
    "cu_seqlens_k: needs to ascend": lambda: packed(cu_seqlens_k=starts(0, 25, 20)),
    r"blocks\.forward\.full\.count: needs 0 for rows past": lambda: packed(
        blocks=causal([5, 150], [15, 5], tile_m=64), cu_seqlens_q=starts(0, 150, 155),
        q=torch.zeros(155, 4, 16, dtype=torch.float16),
    ),
    "lengths_q: needs an int32 tensor, got list": lambda: good() | {"lengths_q": [50, 100]},
    r"blocks\.tile_m: needs one of \(64, 128\), got 192": lambda: (
        good() | {"blocks": replace(causal(100, 130), tile_m=192), "products": "wgmma"}
    ),
    r"blocks\.tile_m: 192 needs products 'wgmma', .* got None": lambda: (
        good() | {"blocks": causal(100, 130, tile_m=192, backward=False)}
    ),
    r"blocks\.tile_m: 192 needs a head dim up to 64, got 72": lambda: (
        {x: torch.zeros(2, 2, 100, 72, dtype=torch.bfloat16) for x in ("q", "k", "v")}
        | {"blocks": causal(100, 100, tile_m=192, backward=False), "products": "wgmma"}
    ),
    r"blocks\.tile_m: 256 needs products 'tcgen05', which Blackwell has, got 'wgmma'": lambda: (
        good() | {"blocks": causal(100, 130, tile_m=256, backward=False), "products": "wgmma"}
    ),
    r"blocks\.tile_m: 256 needs a head dim up to 128, got 136": lambda: (
        {x: torch.zeros(2, 2, 100, 136, dtype=torch.bfloat16) for x in ("q", "k", "v")}
        | {"blocks": causal(100, 100, tile_m=256, backward=False), "products": "tcgen05"}
    ),
    r"blocks\.wide: needs lists of tiles of 192 or 256 queries, got 128": lambda: (
        good() | {"blocks": replace(causal(100, 130), wide=causal(100, 130, backward=False))}
    ),
    r"blocks\.wide: needs a BlockSparse, got tuple": lambda: good() | {"blocks": replace(causal(100, 130), wide=())},
    r"blocks\.paired: needs lists of tiles of 128 x 256 with backward lists, got \(128, 128\)": lambda: (
        good() | {"blocks": replace(causal(100, 130), paired=causal(100, 130))}
    ),
    r"blocks\.paired: needs a BlockSparse, got tuple": lambda: (
        good() | {"blocks": replace(causal(100, 130), paired=())}
    ),
    r"blocks\.tile_n: needs one of \(64, 128\), got 256; lists of 256 are blocks\.paired": lambda: (
        good() | {"blocks": causal(100, 130, tile_n=256)}
    ),
    r"blocks\.forward\.partial\.count: needs shape .* 1\), got \(1, 1, 3\)": lambda: (
        good() | {"blocks": replace(causal(100, 130), wide=causal(500, 130, tile_m=192, backward=False))}
    ),
    "lengths_q: needs lengths from 0 to 100": lambda: good() | {"lengths_q": starts(50, 101)},
    r"lengths_k: needs shape \(2,\)": lambda: good() | {"lengths_k": starts(50)},
}  # fmt: skip


def test_tiles_of_no_kernel_are_refused_where_gradients_are_wanted_too():
    q, k, v = tensors()
    with pytest.raises(ValueError, match=r"blocks\.tile_n: needs one of \(64, 128\), got 32"):
        block_sparse_attention(q, k, v, replace(causal(100, 130), tile_n=32))


@pytest.mark.parametrize("message", WRONG)
def test_wrong_calls_are_refused(message):
    with pytest.raises(ValueError, match=message):
        block_sparse_attention(**WRONG[message]())


def test_good_calls_are_not_refused():
    for call in (good(), packed()):
        out, lse = block_sparse_attention(**call)
        assert out.shape == call["q"].shape and lse.dtype == torch.float32


def test_gradients_need_backward_lists():
    q, k, v = tensors()
    blocks = causal(100, 130, backward=False)
    with pytest.raises(ValueError, match=r"blocks\.backward"):
        block_sparse_attention(q, k, v, blocks)
    with torch.no_grad():
        block_sparse_attention(q, k, v, blocks)


def test_lists_are_read_once_for_each_set_of_lengths(monkeypatch):
    checked = []
    monkeypatch.setattr(kept, "check_contents", lambda blocks, sizes: checked.append(sizes))
    call = good()
    for _ in range(3):
        block_sparse_attention(**call)
    assert len(checked) == 1
    lengths = starts(100, 60)
    for _ in range(3):
        block_sparse_attention(**call, lengths_q=lengths)
    assert len(checked) == 4  # lengths_k is made at each call there, so nothing can be known of it
    both = {"lengths_q": lengths, "lengths_k": starts(130, 130)}
    for _ in range(3):
        block_sparse_attention(**call, **both)
    assert len(checked) == 5
    lengths[1] = 70
    block_sparse_attention(**call, **both)
    assert len(checked) == 6
    positions = starts(2, 0, 1).view(1, 1, 3)
    for schedule in ("ascending", positions, "ascending", positions):
        block_sparse_attention(**call, schedule=schedule)
    assert len(checked) == 8


def test_a_good_call_vouches_for_no_other_order_or_schedule():
    call = good()
    order = call["blocks"].order
    call["blocks"] = replace(call["blocks"], order=replace(order, partial=torch.full_like(order.partial, 7)))
    block_sparse_attention(**call, schedule="descending")  # which is the blocks' own, but its ranks are computed anew
    with pytest.raises(ValueError, match=r"blocks\.order\.partial: needs the descending schedule's ranks"):
        block_sparse_attention(**call, deterministic=True)
    for wrong in ({"group_split": 3}, {"pairs": 0}):
        with pytest.raises(ValueError, match=rf"schedule\.{next(iter(wrong))}: needs None or"):
            block_sparse_attention(**call, schedule=Schedule("descending", **wrong))
    block_sparse_attention(**call, schedule="ascending")
    with pytest.raises(ValueError, match=r"needs the same blocks in every row, as blocks\.schedule\.alike says"):
        block_sparse_attention(**call, schedule=ALIKE)


def test_lengths_and_schedules_made_in_inference_mode_are_read_at_every_call(monkeypatch):
    checked = []
    monkeypatch.setattr(kept, "check_contents", lambda blocks, sizes: checked.append(sizes))
    with torch.inference_mode():
        call = packed()
        for _ in range(2):
            out, _ = block_sparse_attention(**call)
        assert out.is_inference() and len(checked) == 2
        call["cu_seqlens_q"][1] = 21
        with pytest.raises(ValueError, match="cu_seqlens_q: needs to ascend from 0 to 20"):
            block_sparse_attention(**call)
        for _ in range(2):
            block_sparse_attention(**good(), schedule=starts(2, 1, 0).view(1, 1, 3))
        call = good()
        for _ in range(2):
            block_sparse_attention(**call)
        assert len(checked) == 5  # nothing but the lists, which must not be changed


def test_without_any_sequence_the_output_is_empty():
    q, k, v = tensors(batch=0)
    out, lse = block_sparse_attention(q, k, v, causal(100, 130, tile_m=64, tile_n=64))
    assert out.shape == q.shape and lse.shape == q.shape[:3]
    grads = torch.autograd.grad(out.sum(), (q, k, v))
    assert [x.shape for x in grads] == [x.shape for x in (q, k, v)]


def test_what_was_checked_is_forgotten_with_its_blocks():
    gc.collect()
    before = len(kept._known)
    call = good()
    block_sparse_attention(**call)
    assert len(kept._known) == before + 1
    del call
    gc.collect()
    assert len(kept._known) == before


def test_packed_intervals_need_bounds_for_the_longest_sequence_only():
    q, k, v = (torch.randn(150, heads, 16).half() for heads in (4, 2, 2))
    cuts = [starts(0, 100, 150)] * 2
    bounds = torch.full((1, 1, 1, 100), 1000, dtype=torch.int32)
    blocks = intervals(bounds, [100, 50], [100, 50], tile_m=64, tile_n=64)
    out, _ = block_sparse_attention(q, k, v, blocks, cu_seqlens_q=cuts[0], cu_seqlens_k=cuts[1])
    assert bool(out.isfinite().all())
    short = replace(blocks, mask=Intervals(bounds[..., :99].contiguous()))
    with pytest.raises(ValueError, match=r"blocks\.mask\.bounds: needs shape .* at least 100"):
        block_sparse_attention(q, k, v, short, cu_seqlens_q=cuts[0], cu_seqlens_k=cuts[1])


def test_packed_lists_without_a_backward_pass():
    q, k, v = (torch.randn(150, heads, 16).half() for heads in (4, 2, 2))
    cuts = [starts(0, 100, 150)] * 2
    options = {"tile_m": 64, "tile_n": 64, "backward": False}
    order = permutation(starts(1, 0).view(1, 1, 2))
    for blocks in (causal([100, 50], [100, 50], **options), causal([100, 50], [100, 50], schedule=order, **options)):
        out, _ = block_sparse_attention(q, k, v, blocks, cu_seqlens_q=cuts[0], cu_seqlens_k=cuts[1])
        assert out.shape == q.shape and bool(out.isfinite().all())
