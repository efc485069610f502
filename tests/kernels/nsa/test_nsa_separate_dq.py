"""The selected branch's backward pass with a dQ kernel of its own: where it is chosen, and gradients beside the
formula. On a CPU the emulated GPU runs Hopper's kernels."""

import pytest
import torch
from nsa_cases import BOUND, DEVICE, Call, check, errors, expected, run, tensors_of
from nsa_formula import Setting
from nsa_lists import operands_of, settings_of

from fuzz.targets.nsa.list_facts import drawn
from kernels.blocksparse.launch import backward as launch_backward
from kernels.mutants.nsa.table import MUTANTS
from kernels.nsa import native_sparse_answer, operands, plan
from kernels.nsa.branches import BRANCHES, Branch
from kernels.nsa.launcher import Launcher

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
SELECTED = Setting(compress_block_size=64, q_tile_size=128, num_selected_blocks=2)


@pytest.fixture
def launched(monkeypatch, _gpu):
    """Names of the backward kernels, as they are launched; on a GPU that is not a Hopper the test is skipped."""
    if torch.cuda.is_available() and not HOPPER:
        pytest.skip("there is no such kernel for this GPU")
    monkeypatch.setattr(operands, "LAUNCHER", Launcher("wgmma"))
    names, launch = [], launch_backward.launch

    def noted(variant, *values):
        names.append(variant.name)
        launch(variant, *values)

    monkeypatch.setattr(launch_backward, "launch", noted)
    return names


def kinds(names):
    """Kinds of the kernels that have to do with a separate dQ."""
    return [name.split("_")[0] for name in names if "nodq" in name or name.startswith("dq_")]


@pytest.mark.nightly
def test_gradients_are_those_of_the_formula(launched):
    check(Call((280,), 2, 1, 128, weights=("w_gate",), setting=SELECTED), native_sparse_answer)
    assert kinds(launched) == ["preprocess", "dq", "backward"]


@pytest.mark.nightly
@pytest.mark.parametrize("causal", [True, False, "strict"])
def test_packed_sequences_of_any_length(launched, causal):
    call = Call((70, 0, 1, 129, 200), 4, 2, 128, packed=True, setting=SELECTED).with_setting(causal=causal)
    check(call, native_sparse_answer)
    assert kinds(launched) == ["preprocess", "dq", "backward"]


@pytest.mark.nightly
def test_rows_without_keys_have_no_gradient(launched):
    """A frozen selection without blocks for the second tile."""
    branch, out, lse, grad_out = selected((280,), chosen=2)
    branch.selection.blocks[:, :, 1] = -1
    out, lse = branch.forward()
    dq, _, _ = branch.backward(out, lse, grad_out)
    assert not dq[:, 128:256].any() and dq[:, :128].any() and kinds(launched)


def selected(lengths, **settings):
    """(the selected branch of random operands at head dim 128, its output, LSE, and a gradient of its output)."""
    o = operands_of(settings_of(block=64, tile=128, **settings), lengths, dim=128, device=DEVICE)
    generator = torch.Generator().manual_seed(3)
    for x in (o.q, o.k):
        x.copy_(torch.randn(x.shape, generator=generator))
    branch = Branch("selected", o, drawn(o), o.k, o.v)
    grad_out = torch.randn(o.q.shape, generator=generator).to(o.q.dtype).to(DEVICE)
    return branch, *branch.forward(), grad_out


@pytest.mark.nightly
def test_gradients_are_those_of_ordered_adds_to_dq_but_for_rounding(launched):
    branch, out, lse, grad_out = selected((700,), chosen=3)
    separate, again, ordered = (branch.backward(out, lse, grad_out, way) for way in (True, None, False))
    assert all(torch.equal(x, y) for x, y in zip(separate, again, strict=True))
    for found, right in zip(separate, ordered, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-3, atol=1e-3)
    assert kinds(launched) == ["preprocess", "dq", "backward"] * 2


@pytest.mark.parametrize(
    ("dim", "setting", "there"),
    [
        (128, {}, True),
        (120, {"q_tile_size": 256}, True),
        (128, {"compress_block_size": 32}, True),
        (128, {"compress_block_size": 128}, False),  # tiles of 128 keys
        (128, {"q_tile_size": 64}, False),
        (64, {}, False),
        (192, {}, False),
    ],
)
def test_where_the_selected_branch_has_a_separate_dq(dim, setting, there):
    options = {"compress_block_size": 64, "q_tile_size": 128, "num_selected_blocks": 2, **setting}
    q = torch.zeros(1, 300, 1, dim, dtype=torch.bfloat16)
    for products, has_it in (("wgmma", there), ("mma", False)):
        variants = plan(q, q, q, products=products, **options).variants
        assert any(one.kind == "dq" for one in variants) == has_it
        assert any(one.separate_dq for one in variants) == has_it


def test_no_other_branch_has_one(launched):
    branch, *_ = selected((280,))
    assert [Branch(name, branch.operands, branch.selection, branch.k, branch.v).scattered() for name in BRANCHES] == [
        False,
        True,
        False,
    ]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["dq_not_scaled", "dq_statistics_exchanged"])
def test_a_mutant_of_the_dq_kernel_makes_the_gradient_of_q_wrong_alone(launched, name):
    call = Call((280,), 2, 1, 128, setting=SELECTED)
    tensors = tensors_of(call)
    answer, grads, grad_out = run(call, MUTANTS[name], tensors)
    wanted, wanted_grads, _ = expected(call, tensors, grad_out)
    found = errors(call, answer, grads, wanted, wanted_grads)
    assert {tensor for tensor, error in found.items() if error > BOUND[call.dtype]} == {"q"}


@pytest.mark.nightly
def test_gradients_are_the_same_in_every_call(launched):
    call = Call((280,), 2, 1, 128, setting=SELECTED)
    first, second = (run(call, native_sparse_answer, tensors_of(call))[1] for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
