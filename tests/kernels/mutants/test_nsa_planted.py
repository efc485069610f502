"""Each mutant of kernels.nsa is wrong on a small call that the correct kernel gets right."""

import pytest
import torch
from covering import daily
from nsa_cases import BOUND, DEVICE, errors, expected, listed, run, tensors_of
from nsa_shown import SHOWN
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton")
pytest.importorskip("cutlass")
pytest.importorskip("llvmlite")

from kernels.mutants.nsa.table import MUTANTS
from kernels.nsa import native_sparse_answer, plan
from kernels.nsa.config import CHUNK

LONG = ("last_group_by_the_full_size",)
# Of kernels that tests/kernels/blocksparse shows by themselves: dq_by_queries, backward/test_backward_whole_steps.py
SEPARATE_DQ = (
    *("dq_statistics_exchanged", "dq_tail_keys_not_masked", "dq_keys_released_when_scored", "dq_not_scaled"),
    *("queries_released_when_scored", "sums_added_before_they_are_there"),
)
APART = ("gradients_added_in_half", "all_scores_at_once", "row_offset_wraps")  # shown by tests of their own


@pytest.fixture(autouse=True)
def _gpu():
    if torch.cuda.is_available():
        yield
        return
    from fuzz.targets.blocksparse.devices import emulated
    from kernels.blocksparse.compile import runtime

    before = runtime._elsewhere
    runtime.launch_elsewhere(emulated())
    yield
    runtime.launch_elsewhere(before)


def wrong_tensors(function, call):
    """What is not as the formula has it. The gradients are those of the selection that was made."""
    tensors = tensors_of(call)
    answer, grads, grad_out = run(call, function, tensors)
    wanted, wanted_grads, [(blocks, groups)] = expected(call, tensors, grad_out)
    found = errors(call, answer, grads, wanted, wanted_grads)
    wrong = {name for name, error in found.items() if error > BOUND[call.dtype]}
    if listed(answer.selection.blocks[0]) != blocks:
        wrong.add("blocks")
    if groups is not None and listed(answer.selection.groups[0]) != groups:
        wrong.add("groups")
    return wrong


DAILY = ("gate_gradient_without_slope",)


@pytest.mark.parametrize("name", daily([name for name in MUTANTS if name not in (*LONG, *APART, *SEPARATE_DQ)], DAILY))
def test_wrong_where_the_correct_kernel_is_right(name):
    call, told = SHOWN[name]
    assert told <= wrong_tensors(MUTANTS[name], call)
    assert not wrong_tensors(native_sparse_answer, call)


@pytest.mark.nightly
@pytest.mark.parametrize("name", LONG)
def test_wrong_on_long_calls_where_the_correct_kernel_is_right(name):
    call, told = SHOWN[name]
    assert told <= wrong_tensors(MUTANTS[name], call)
    assert not wrong_tensors(native_sparse_answer, call)


def test_sums_of_branches_in_half_precision_are_wrong_where_they_cancel():
    """Equal scores. dV of the first token is, of the window, 256, of the selected branch 256 - 936 / 2, and of the
    compressed one (256 - 936) / 16, that is 1.5 in all; rounded after each, 2."""
    zero = torch.zeros(1, 64, 1, 32, dtype=torch.bfloat16, device=DEVICE)
    grad_out = zero.clone()
    grad_out[:, 0], grad_out[:, 1] = 256, -936
    found = {}
    for name, function in (("", native_sparse_answer), ("half", MUTANTS["gradients_added_in_half"])):
        v = zero.clone().requires_grad_()
        options = {"compress_block_size": 16, "window_size": 1, "q_tile_size": 64}
        answer = function(zero, zero, v, **options)
        found[name] = float(torch.autograd.grad(answer.out, v, grad_out)[0][0, 0, 0, 0])
    assert found[""] == 0.5 and found["half"] != 0.5


class _Largest(TorchDispatchMode):
    """The elements of the largest tensor that was made."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor):
            self.elements = max(self.elements, found.numel())
        return found


def test_scores_at_one_time_are_more_than_a_chunk():
    """Fake tensors have no memory, and a plan launches nothing: a million tokens cost nothing here."""
    most = {}
    for name in ("", "nsa!all_scores_at_once"):
        with FakeTensorMode(), _Largest() as largest:
            q, k = (torch.empty(1, 1 << 20, heads, 8, dtype=torch.bfloat16) for heads in (2, 1))
            plan(q, k, k, backward=False, injection=name)
        most[name] = largest.elements
    assert most[""] <= 2 * CHUNK < most["nsa!all_scores_at_once"]


def test_each_is_shown():
    assert set(SHOWN) == set(MUTANTS) - {"all_scores_at_once", "row_offset_wraps", *SEPARATE_DQ}
