"""kernels.nsa at its edges: nothing to attend to, equal scores, strides, frozen selections, what a row may know."""

import pytest
import torch
from covering import daily
from nsa_cases import DEVICE, Call, arguments, check, errors, expected, run, tensors_of
from nsa_formula import Setting, sequence

from kernels.nsa import Selection, native_sparse_answer, native_sparse_attention

ALL = ("w_k", "w_v", "w_gate")


@pytest.mark.parametrize("lengths", [(0,), (0, 0), (1,)])
@pytest.mark.parametrize("packed", [False, True])
def test_no_tokens_and_one(lengths, packed):
    check(Call(lengths, packed=packed, weights=ALL), native_sparse_answer)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_the_gradient_of_a_weight_is_zero_where_there_are_no_rows(name, packed):
    """One weight has a gradient, and the others are not there."""
    call = Call((0, 0), packed=packed, weights=(name,))
    tensors = tensors_of(call)
    _, grads, _ = run(call, native_sparse_answer, tensors)
    assert grads[name].shape == tensors[name].shape and grads[name].dtype == call.dtype and not grads[name].any()


def test_no_sequences():
    q = torch.zeros(0, 64, 2, 32, dtype=torch.bfloat16, device=DEVICE, requires_grad=True)
    answer = native_sparse_answer(q, q, q)
    assert answer.out.shape == q.shape and answer.selection.blocks.shape == (0, 2, 1, 1)
    assert torch.autograd.grad(answer.out.sum(), q)[0].shape == q.shape


@pytest.fixture
def uninitialized_memory_is_nan():
    """torch.empty gives NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(before)


@pytest.mark.parametrize("weights", [("w_k",), ("w_v",), ("w_gate",), ALL])
@pytest.mark.parametrize("shape", [(0, 64), (2, 0), (0,)])
def test_without_rows_every_weight_has_gradients_of_zero(weights, shape, uninitialized_memory_is_nan):
    """No sequences; sequences without tokens, padded and packed: written, not left as memory was."""
    call = Call((0, 0) if shape == (0,) else (0,), 4, 2, packed=shape == (0,), weights=weights, dtype=torch.float16)
    tensors = tensors_of(call)
    for name, heads in (("q", 4), ("k", 2), ("v", 2)):
        tensors[name] = torch.zeros(*shape, heads, 32, dtype=torch.float16, device=DEVICE, requires_grad=True)
    answer, grads, _ = run(call, native_sparse_answer, tensors)
    assert answer.out.shape == tensors["q"].shape
    assert set(grads) == {"q", "k", "v", *weights}
    for name, grad in grads.items():
        assert grad.shape == tensors[name].shape and grad.dtype == torch.float16, name
        assert torch.equal(grad, torch.zeros_like(grad)), name


def test_a_branch_without_keys_is_zero_and_so_are_its_gradients(guarded):
    """No window, and, strict, no block for the first tile: rows before the first block's end have no key at all."""
    call = Call((90,), weights=ALL, setting=Setting(window_size=0, causal="strict"))
    answer = check(call, native_sparse_answer)
    assert not answer.out[:, :15].any() and answer.out[:, 15].any()
    assert guarded()


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param(Setting(num_selected_blocks=50, window_size=1000), marks=pytest.mark.nightly),
        Setting(window_size=1),
    ],
)
def test_every_block_and_one_key(setting):
    check(Call((150,), weights=("w_gate",), setting=setting), native_sparse_answer)


@pytest.mark.nightly
def test_equal_scores_go_to_the_lower_block():
    call = Call((400,), heads_q=2, setting=Setting(num_selected_blocks=3))
    tensors = tensors_of(call)
    with torch.no_grad():
        tensors["k"][:] = tensors["k"][:, :1]
        tensors["q"][:, :64] = 0  # scores of 0 and of -0
    answer, _, _ = run(call, native_sparse_answer, tensors)
    assert answer.selection.blocks.tolist() == [[[[0, 1, 2]] * 7] * 2]


def test_a_frozen_selection_is_what_is_seen():
    call = Call((200,), weights=("w_gate",))
    tensors = tensors_of(call)
    blocks = [[0, 3], [2, -1], [-1, -1], [5, 12]]
    frozen = Selection(torch.tensor([[blocks, blocks[::-1]]], dtype=torch.int32, device=DEVICE))
    answer, grads, grad_out = run(call, native_sparse_answer, tensors, selection=frozen)
    assert torch.equal(answer.selection.blocks, frozen.blocks) and answer.selection.groups is None
    wide = {name: x.detach().double().cpu().requires_grad_() for name, x in tensors.items()}
    chosen = [[[j for j in row if j >= 0] for row in head] for head in frozen.blocks[0].tolist()]
    rows = [wide[name][0] for name in ("q", "k", "v")]
    out = sequence(*rows, None, None, wide["w_gate"], call.setting, chosen)[0][None]
    wanted = torch.autograd.grad(out, list(wide.values()), grad_out.double().cpu())
    found = errors(call, answer, grads, out.detach(), dict(zip(wide, wanted, strict=True)))
    assert max(found.values()) < 0.012, found


@pytest.mark.nightly
def test_strict_rows_depend_on_no_later_token():
    """Rows of 16 share a warp of the attention kernels, which rescales sums when one of them needs it: those of the
    last row's own are the same but for rounding."""
    call = Call((300,), 2, 1, weights=ALL).with_setting(causal="strict", num_selected_blocks=3)
    tensors = tensors_of(call)

    def answer(given):
        with torch.no_grad():
            rows = (given[name] for name in "qkv")
            return native_sparse_answer(*rows, **arguments(call, given)).out

    before = answer(tensors)
    for last in (0, 64, 150, 159):
        later = {name: x.detach().clone() for name, x in tensors.items()}
        for name in "qkv":
            later[name][:, last + 1 :] = -3 * later[name][:, last + 1 :].flip(1)
        after = answer(later)
        alone = last + 1 if last % 16 == 15 else last // 16 * 16
        assert torch.equal(before[:, :alone], after[:, :alone]), last
        torch.testing.assert_close(before[:, : last + 1], after[:, : last + 1], atol=4e-3, rtol=8e-3)
        assert not torch.equal(before, after)


def test_the_published_rule_shows_a_block_that_has_only_begun():
    call = Call((64,), 1, 1)
    tensors = tensors_of(call)
    before = run(call, native_sparse_answer, tensors)[0].out
    with torch.no_grad():
        tensors["v"][:, 15] += 5
    after = run(call, native_sparse_answer, tensors)[0].out
    assert not torch.equal(before[:, 0], after[:, 0])


@pytest.mark.parametrize("how", daily(["heads_first", "expanded", "odd"], ["odd"]))
def test_strides(how):
    call = Call((100,), 4, 2, weights=("w_gate",))
    tensors = tensors_of(call)
    with torch.no_grad():
        if how == "heads_first":
            tensors = {
                n: x.transpose(1, 2).contiguous().transpose(1, 2) if n in "qkv" else x for n, x in tensors.items()
            }
        elif how == "expanded":
            tensors["k"] = tensors["k"][:, :, :1].expand(-1, -1, 2, -1)
        else:
            tensors["q"] = torch.nn.functional.pad(tensors["q"], (1, 2))[..., 1:-2]
    tensors = {name: x.detach().requires_grad_() for name, x in tensors.items()}
    assert how == "expanded" or not tensors["q"].is_contiguous()
    answer, grads, grad_out = run(call, native_sparse_answer, tensors)
    wanted, wanted_grads, _ = expected(call, tensors, grad_out)
    found = errors(call, answer, grads, wanted, wanted_grads)
    assert max(found.values()) < 0.012, found


def test_a_gradient_without_strides():
    call = Call((100,), weights=ALL)
    tensors = tensors_of(call)
    out = native_sparse_attention(*(tensors[n] for n in "qkv"), compress_block_size=16, q_tile_size=64)
    one = torch.autograd.grad(out.sum(), [tensors[n] for n in "qkv"], retain_graph=True)
    other = torch.autograd.grad(out, [tensors[n] for n in "qkv"], torch.ones_like(out))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.nightly
def test_packed_sequences_are_as_they_are_alone():
    """Given the longest length, too: nothing is asked of the device then."""
    lengths = (70, 130)
    call = Call(lengths, 2, 1, packed=True, weights=ALL)
    tensors = tensors_of(call)
    answer, grads, grad_out = run(call, native_sparse_answer, tensors, max_seqlen=130)
    parts = {name: tensors[name].detach().split(lengths) for name in "qkv"}
    for number, part in enumerate(grad_out.split(lengths)):
        alone = {**tensors, **{name: parts[name][number][None].requires_grad_() for name in "qkv"}}
        weights = {"w_k_compress": "w_k", "w_v_compress": "w_v", "gate_proj_weight": "w_gate"}
        options = {argument: tensors[name] for argument, name in weights.items()}
        out = native_sparse_attention(
            *(alone[n] for n in "qkv"),
            **options,
            compress_block_size=16,
            num_selected_blocks=2,
            window_size=40,
            q_tile_size=64,
        )
        assert torch.equal(out[0], answer.out.split(lengths)[number])
        found = torch.autograd.grad(out, [alone[n] for n in "qkv"], part[None])
        for name, grad in zip("qkv", found, strict=True):
            assert torch.equal(grad[0], grads[name].split(lengths)[number]), name


@pytest.mark.nightly
def test_gradients_are_bitwise_the_same_in_every_run():
    call = Call((200,), 4, 2, weights=ALL)
    runs = [run(call, native_sparse_answer)[1] for _ in range(2)]
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])


@pytest.mark.nightly
def test_atomic_gradients_differ_by_rounding_alone(adds_in_any_order):
    call = Call((200,), 4, 2, weights=ALL)
    one, other = (run(call, native_sparse_answer, deterministic=ordered)[1] for ordered in (True, False))
    for name in one:
        torch.testing.assert_close(one[name], other[name], atol=0.03, rtol=0.03)
