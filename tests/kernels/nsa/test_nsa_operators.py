"""kernels.nsa as PyTorch operators: opcheck, one graph under torch.compile, nothing asked of the device, memory."""

import inspect

import pytest
import torch
from nsa_cases import DEVICE, Call, arguments, tensors_of
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.nsa import Selection, native_sparse_answer, native_sparse_attention, plan
from kernels.nsa.choice import tiles_at_once
from kernels.nsa.config import CHUNK
from kernels.nsa.injection import find_injection
from kernels.nsa.launcher import Plan
from kernels.nsa.operands import Operands, Settings
from kernels.nsa.plans import backward_pass, forward_pass

OPERATORS = torch.ops.attnfuzz
BACKEND = "inductor" if DEVICE == "cuda" else "aot_eager"
ALL = ("w_k", "w_v", "w_gate")
SMALL = Call((40,), weights=ALL)
NUMBERS = [16, 2, 40, 0, 1, 64]


def forward_arguments(call, cu=None):
    tensors = tensors_of(call)
    given = [tensors.get(name) for name in ("q", "k", "v", *ALL)]
    return (*given, cu, None, None, [*NUMBERS, max(call.lengths)], 0.25, True, "")


@pytest.mark.nightly
@pytest.mark.parametrize("weights", [(), ALL])
def test_forward_passes_opcheck(weights):
    torch.library.opcheck(OPERATORS.native_sparse_forward.default, forward_arguments(Call((40,), weights=weights)))


@pytest.mark.nightly
def test_forward_of_packed_sequences_passes_opcheck():
    cu = torch.tensor([0, 10, 40], dtype=torch.int32, device=DEVICE)
    call = Call((10, 30), packed=True)
    torch.library.opcheck(OPERATORS.native_sparse_forward.default, forward_arguments(call, cu))


@pytest.mark.nightly
@pytest.mark.parametrize("weights", [(), ALL])
def test_backward_passes_opcheck(weights):
    call = Call((40,), weights=weights)
    given = [x.detach() if isinstance(x, torch.Tensor) else x for x in forward_arguments(call)]
    out, blocks, groups = OPERATORS.native_sparse_forward(*given)
    inputs = (torch.ones_like(out), *given[:7], blocks, groups, *given[9:])
    torch.library.opcheck(OPERATORS.native_sparse_backward.default, inputs)


def test_it_compiles_in_one_graph():
    options = arguments(SMALL, tensors := tensors_of(SMALL))

    def loss(q, k, v, options):
        return (native_sparse_attention(q * 2, k, v, **options).float() ** 2).sum()

    given = [tensors[name] for name in "qkv"]
    got = torch.compile(loss, fullgraph=True, backend=BACKEND)(*given, options)
    torch.testing.assert_close(got, loss(*given, options), rtol=1e-5, atol=0)
    asked = list(tensors.values())
    wanted = torch.autograd.grad(loss(*given, options), asked)
    for one, other in zip(torch.autograd.grad(got, asked), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3)


def operands_of(length, packed, block=16, groups=0, causal=1, weights=True, heads=(4, 2), dim=32, tile=256):
    rows = (length,) if packed else (2, length)
    q, k, v = (torch.zeros(*rows, n, dim, dtype=torch.bfloat16) for n in (heads[0], heads[1], heads[1]))
    w = [torch.zeros(heads[1], dim, dim)] * 2 + [torch.zeros(heads[0], 3, dim)] if weights else [None] * 3
    cu = torch.zeros(4, dtype=torch.int32) if packed else None
    return Operands(q, k, v, *w, cu, Settings(block, 4, 512, groups, causal, tile, length, 0.2, True), Plan())


@pytest.mark.parametrize("causal", [0, 1, 2])
@pytest.mark.parametrize(("packed", "groups"), [(False, 0), (True, 1)])
def test_nothing_is_asked_of_the_device(causal, packed, groups):
    """Under fake tensors, whose values nobody knows, a question raises."""
    with FakeTensorMode():
        operands = operands_of(5000, packed, groups=groups, causal=causal)
        out, selection = forward_pass(operands, None)
        assert (selection.groups is None) == (not groups)
        grads = backward_pass(operands, selection, torch.ones_like(out))
        assert grads.q.shape == out.shape and grads.w_gate.shape == (4, 3, 32)


class _Largest(TorchDispatchMode):
    """The elements of the largest tensor that was made."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for x in found if isinstance(found, tuple | list) else [found]:
            if isinstance(x, torch.Tensor):
                self.elements = max(self.elements, x.untyped_storage().nbytes() // x.element_size())
        return found


def test_no_tensor_grows_with_the_square_of_the_length():
    """Fake tensors have no memory: a million tokens cost nothing here. Chunks of scores have a size of their own."""
    with FakeTensorMode(), _Largest() as largest:
        operands = operands_of(1 << 20, True, block=64, groups=4, heads=(2, 1), dim=64, tile=256)
        out, selection = forward_pass(operands, None)
        backward_pass(operands, selection, torch.ones_like(out))
    assert largest.elements <= max(3 * 2 * 64 << 20, 2 * CHUNK)


def test_chunks_of_scores_are_bounded():
    for scores in (1, 1000, CHUNK, 100 * CHUNK):
        assert tiles_at_once(scores) * scores <= max(CHUNK, scores)


def test_without_gates_no_kernel_of_theirs_is_launched():
    """Backward: the means again, dQ, dK, dV; with gates also one of each branch, and that of their weights."""
    for weights, more in (((), []), (("w_gate",), ["split_kernel"])):
        call = Call((40,), weights=weights)
        tensors = tensors_of(call)
        found = plan(*(tensors[name] for name in "qkv"), **arguments(call, tensors))
        names = [launch.kernel.__name__ for launch in found.launches]
        forward = ["span_rows_kernel", "chosen_kernel", "span_rows_kernel"]
        backward = [["span_columns_kernel"], ["chosen_kernel", "transposed_kernel"], ["span_columns_kernel"]]
        branches = [x for one, lists in zip(forward, backward, strict=True) for x in [one, *more, *lists]]
        gradients = ["query_gradient_kernel", "key_gradient_kernel", "key_gradient_kernel"]
        last = ["gate_weight_kernel"] if weights else []
        means = ["mean_kernel"] * 2
        forward = [*means, "mean_kernel", "choose_kernel", *forward, "combine_kernel"]
        assert names == [*forward, *means, *branches, *gradients, *last]
        assert {launch.constants["GATED"] for launch in found.launches if "GATED" in launch.constants} == {
            bool(weights)
        }
        kinds = [(variant.kind, variant.mask) for variant in found.variants]
        assert len(kinds) == len(set(kinds)) and {mask for _, mask in kinds} >= {"intervals", "bits", "band"}


@pytest.mark.parametrize("function", [native_sparse_answer, native_sparse_attention, plan])
def test_users_functions_take_no_injection(function):
    assert "injection" not in inspect.signature(function).parameters


def test_an_unknown_injection_is_refused():
    with pytest.raises(ValueError, match=r"injection: .*import kernels\.mutants"):
        find_injection("nothing")


def wrong(**changes):
    q = torch.zeros(1, 100, 4, 32, dtype=torch.bfloat16, device=DEVICE)
    k = torch.zeros(1, 100, 2, 32, dtype=torch.bfloat16, device=DEVICE)
    return {"q": q, "k": k, "v": k} | changes


ROWS = torch.zeros(1, 4, 1, 2, dtype=torch.int32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": torch.zeros(100, 4, 32)}, r"q: needs 4 dimensions, .*, got 3"),
        ({"q": torch.zeros(1, 100, 4, 32)}, r"k: needs q's torch.float32"),
        ({"k": torch.zeros(1, 100, 3, 32, dtype=torch.bfloat16)}, r"v: needs k's shape"),
        (
            {name: torch.zeros(1, 100, 3, 32, dtype=torch.bfloat16) for name in "kv"},
            r"k: needs heads that divide q's 4",
        ),
        ({"compress_block_size": 24}, r"compress_block_size: needs a positive multiple of 16, got 24"),
        ({"q_tile_size": 96}, r"q_tile_size: needs a positive multiple of 64, got 96"),
        ({"num_selected_blocks": 0}, r"num_selected_blocks: needs a positive number, got 0"),
        ({"num_cmp_selected_blocks": 0}, r"num_cmp_selected_blocks: needs None or a positive number, got 0"),
        ({"window_size": -1}, r"window_size: needs a number of keys, 0 or more, got -1"),
        ({"causal": "loose"}, r"causal: needs True, False or 'strict', got 'loose'"),
        ({"softmax_scale": 0.0}, r"softmax_scale: needs a positive finite number, got 0.0"),
        ({"max_seqlen": 5}, r"max_seqlen: needs cu_seqlens beside it, got 5 alone"),
        ({"gate_proj_weight": torch.zeros(4, 2, 32)}, r"gate_proj_weight: needs shape \(4, 3, 32\), got \(4, 2, 32\)"),
        ({"w_k_compress": torch.zeros(2, 32, 32).double()}, r"w_k_compress: needs .* or float32 .*, got torch.float64"),
        ({"selection": ROWS}, r"selection: needs a Selection or None, got Tensor"),
        ({"selection": Selection(ROWS, ROWS)}, r"selection.groups: needs groups None, as all are seen"),
        ({"selection": Selection(ROWS[:, :2])}, r"selection.blocks: needs shape \(1, 4, 1\) and a width"),
        ({"selection": Selection(ROWS)}, r"selection.blocks: needs rows that ascend, of numbers from 0 to 1, then -1"),
        ({"selection": Selection(ROWS - torch.tensor([1, 0]).int())}, r"selection.blocks: needs rows that ascend"),
    ],
)
def test_refusals_name_the_argument(changes, message):
    changes = {name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for name, x in changes.items()}
    if DEVICE != "cpu" and "selection" in changes:
        pytest.skip("selections here are the CPU's")
    with pytest.raises(ValueError, match=message):
        native_sparse_answer(**wrong(**changes))


@pytest.mark.parametrize("starts", [[0, 60], [1, 100], [0, 80, 60, 100]])
def test_starts_that_are_no_starts_are_refused(starts):
    given = {name: x[0] for name, x in wrong().items()}
    with pytest.raises(ValueError, match=r"cu_seqlens: needs to ascend from 0 to 100, got"):
        native_sparse_answer(**given, cu_seqlens=torch.tensor(starts, dtype=torch.int32, device=DEVICE))


@pytest.mark.skipif(DEVICE != "cuda", reason="needs a GPU")
@pytest.mark.parametrize("packed", [False, True])
def test_a_cuda_graph_holds_forward_and_backward(packed):
    call = Call((300, 300) if packed else (300,), 4, 2, packed=packed, weights=ALL)
    tensors = tensors_of(call)
    options = arguments(call, tensors) | ({"max_seqlen": 300} if packed else {})

    def step():
        out = native_sparse_attention(*(tensors[name] for name in "qkv"), **options)
        return out, *torch.autograd.grad(out.float().sum(), list(tensors.values()))

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        wanted = [x.clone() for x in step()]
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = step()
    graph.replay()
    assert all(torch.equal(one, other) for one, other in zip(got, wanted, strict=True))
