"""kernels.dynamic_mask as PyTorch operators: opcheck, one graph under torch.compile, launches, counters, same bits."""

import inspect

import pytest
import torch
from dynamic_mask_cases import DEVICE, Call, tensors_of
from sdpa_cases import random

from kernels.dynamic_mask import dynamic_mask_answer, dynamic_mask_attention, injection, pack_mask, plan, prepare

BACKEND = "inductor" if DEVICE == "cuda" else "aot_eager"
OPERATORS = torch.ops.attnfuzz
SMALL = Call((6,), (9,), 2, 1, 16, 16, mask="1kff", bias="1k1f")


def forward_arguments(call, causal=0):
    query, key, value, mask, bias = tensors_of(call)
    numbers = (call.sizes[2], call.sizes[3], causal, 0.25, 0.0)
    return (query, key, value, mask, bias, None, None, *numbers, 0, True, "")


@pytest.mark.nightly
@pytest.mark.parametrize("causal", [0, 2])
def test_forward_passes_opcheck(causal):
    torch.library.opcheck(OPERATORS.dynamic_mask_forward.default, forward_arguments(SMALL, causal))


@pytest.mark.nightly
@pytest.mark.parametrize("want_bias", [True, False])
def test_backward_passes_opcheck(want_bias):
    given = [x.detach() if isinstance(x, torch.Tensor) else x for x in forward_arguments(SMALL)]
    out, lse, _ = OPERATORS.dynamic_mask_forward(*given)
    numbers = given[7:12]
    arguments = (torch.ones_like(out), torch.ones_like(lse), *given[:7], out, lse, *numbers, 2, True, want_bias, "")
    torch.library.opcheck(OPERATORS.dynamic_mask_backward.default, arguments)


def test_it_compiles_in_one_graph():
    def loss(query, key, value, mask, bias):
        answer = dynamic_mask_answer(query * 2, key, value, mask, bias, causal="top_left")
        return (answer.out.float() ** 2).sum() + answer.lse.nan_to_num(neginf=0.0).sum()

    tensors = tensors_of(SMALL)
    got = torch.compile(loss, fullgraph=True, backend=BACKEND)(*tensors)
    torch.testing.assert_close(got, loss(*tensors), rtol=1e-5, atol=0)
    asked = [x for x in tensors if x.requires_grad]
    for one, other in zip(torch.autograd.grad(got, asked), torch.autograd.grad(loss(*tensors), asked), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3)


def test_without_a_bias_no_gradient_of_it_is_made():
    """No kernel for it, and no memory: the operator's answer for it has no elements. Nor where it is not asked for."""
    query, key, value, mask, _ = tensors_of(SMALL)
    for bias in (None, random(1, 1, 6, 9)):
        names = [launch.kernel.__name__ for launch in plan(query, key, value, mask, bias)]
        lists = ["marks_kernel", "lists_kernel"]  # one size of tiles: backward marks once, and makes two kinds of lists
        backward = ["row_state_kernel", *lists, "dkdv_kernel", "lists_kernel", "dq_kernel"]
        assert names == [*lists, "forward_kernel", *backward]
    for call in (Call((6,), (9,)), Call((6,), (9,), bias="11ff")):
        given = forward_arguments(call)
        out, lse, _ = OPERATORS.dynamic_mask_forward(*given)
        found = OPERATORS.dynamic_mask_backward(out, None, *given[:7], out, lse, *given[7:12], 0, True, False, "")
        assert found[3].shape == (0,)


def test_no_launch_has_a_tensor_of_the_scores_size_but_mask_bias_and_its_gradient():
    call = Call((512,), (640,), 2, 1, 16, 16, mask="11ff", bias="11ff")
    query, key, value, mask, bias = tensors_of(call)
    found = {}
    for launch in plan(query, key, value, mask, bias, num_splits=4):
        for name, x in launch.runtime.items():
            if isinstance(x, torch.Tensor) and x.numel() >= 512 * 640:
                found.setdefault(launch.kernel.__name__, set()).add(name)
    planes = {"mMask", "mBias"}
    passes = {"marks_kernel": {"mMask"}, "forward_kernel": planes, "dkdv_kernel": planes, "dq_kernel": planes}
    assert found == passes | {"dbias_kernel": planes | {"mdBias"}}


@pytest.mark.skipif(DEVICE != "cuda", reason="needs a GPU")
@pytest.mark.parametrize("bits", [False, True])
def test_peak_memory_grows_with_the_length_and_not_with_its_square(bits):
    length, heads = 4096, 4
    query, key, value = (random(1, heads, length, 32, dtype=torch.float16).requires_grad_() for _ in "qkv")
    mask = (random(1, 1, length, length) > 0).to(DEVICE)
    mask = pack_mask(mask) if bits else mask
    row = random(1, heads, 1, length, dtype=torch.float16).requires_grad_()
    for _ in range(2):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = dynamic_mask_attention(query, key, value, mask, row, causal="top_left", num_splits=1)
        torch.autograd.grad(out.float().sum(), (query, key, value, row))
        more = torch.cuda.max_memory_allocated() - before
        del out
    assert more < length * length  # a byte for each score of one head


def test_wide_loads_need_every_pitch_at_16_bytes():
    """Of an odd row pitch too, where those of heads and sequences are even."""
    query, key, value = (random(2, 2, 64, 32, dtype=torch.float16) for _ in "qkv")
    odd = torch.nn.functional.pad(key, (0, 1))[..., :32]
    pitches = {}
    for name, x in (("even", key), ("odd", odd)):
        forward, *_ = plan(query, x, value)
        pitches[name] = forward.constants["ALIGNED"]
    assert pitches == {"even": True, "odd": False}


def test_a_whole_bias_has_a_kernel_of_its_own_and_a_row_has_none():
    query, key, value, mask, row = tensors_of(SMALL)
    whole = random(1, 1, 6, 9).requires_grad_()
    assert prepare(query, key, value, mask, row) == 9  # four of attention, five of lists
    assert [launch.kernel.__name__ for launch in plan(query, key, value, mask, whole)][-1] == "dbias_kernel"


def test_empty_tiles_are_skipped_and_counted_in_both_directions():
    query, key, value = (random(1, 1, 130, 16, dtype=torch.float16) for _ in "qkv")
    mask = torch.zeros(1, 1, 130, 130, dtype=torch.bool, device=DEVICE)
    mask[0, 0, 70, 129] = True  # one pair, in tile (1, 2) of nine
    for given in (mask, pack_mask(mask)):
        answer = dynamic_mask_answer(query, key, value, given)
        assert answer.tiles.tolist() == [[[[0, 3], [1, 2], [0, 3]]]]
        numbers = (130, 130, 0, 0.25, 0.0, 2, True, False, "")
        tensors = (query, key, value, given, None, None, None, answer.out, answer.lse)
        tiles = OPERATORS.dynamic_mask_backward(answer.out, None, *tensors, *numbers)[4]
        assert tiles.sum((0, 1, 2)).tolist() == [1, 8]


@pytest.mark.parametrize("splits", [1, 3])
def test_gradients_are_bitwise_the_same_in_every_run(splits):
    query, key, value, mask, bias = tensors_of(Call((130,), (20,), mask="1kff", bias="1k1f"))
    runs = []
    for _ in range(2):
        out = dynamic_mask_attention(query, key, value, mask, bias, num_splits=splits)
        runs.append(torch.autograd.grad(out.float().sum(), (query, key, value, bias)))
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))


@pytest.mark.parametrize("function", [dynamic_mask_attention, dynamic_mask_answer, plan, prepare])
def test_users_functions_take_no_injection(function):
    assert "injection" not in inspect.signature(function).parameters


def test_an_unknown_injection_is_refused():
    with pytest.raises(ValueError, match=r"injection: .*import kernels\.mutants"):
        injection.find_injection("nothing")


@pytest.mark.skipif(DEVICE != "cuda", reason="needs a GPU")
def test_a_cuda_graph_holds_forward_and_backward():
    query, key, value, mask, bias = tensors_of(Call((130,), (200,), mask="1kff", bias="1k1f"))

    def step():
        out = dynamic_mask_attention(query, key, value, mask, bias, causal="bottom_right", num_splits=2)
        return out, *torch.autograd.grad(out.float().sum(), (query, key, value, bias))

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
