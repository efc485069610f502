"""The target nsa: what it refuses, and kernels.nsa and its mutants judged on the emulated GPU."""

from __future__ import annotations

import pytest
import torch

from fuzz.core.case import Case, Inputs, Storage
from fuzz.core.refusal import refusal
from fuzz.judging.judge import execute
from fuzz.script import write_script
from fuzz.targets.nsa import emulated
from fuzz.targets.registry import load
from oracles.native_sparse.problem import NativeSparse

pytest.importorskip("triton")
pytest.importorskip("cutlass")
P = NativeSparse(
    (150,), 2, 1, 32, "bfloat16", compress_block_size=16, num_selected_blocks=2, window_size=40, q_tile=64, w_k=True,
    w_v=True, w_gate=True,
)  # fmt: skip
# The earliest tensor that a mutant spoils.
SHOWN = {
    "future_block_selected": "blocks",
    "smallest_chosen_left_out": "blocks",
    "selected_block_widened": "o",
    "compressed_branch_not_causal": "o",
    "window_lost_in_backward": "dq",
    "gates_swapped": "o",
    "gate_gradient_without_slope": "dw_gate",
    "mean_gradient_not_divided": "dk",
    "weight_gradient_transposed": "dw_k",
    "scores_of_other_kv_heads": "blocks",
}


def judged(name, problem, **inputs):
    if torch.cuda.is_available():
        pytest.skip("kernels run on the GPU")
    case = Case(name, problem, Inputs(seed=3, **inputs), repeats=1)
    return execute(case, load(name, device="emulator"), lambda phase, limit: None)


@pytest.mark.parametrize(
    "changes",
    [{"compress_block_size": 24}, {"q_tile": 32}, {"dtype": "float32"}, {"scale": -1.0}, {"dim": 12, "dim_v": 12}],
)
def test_what_the_kernel_does_not_take_is_declared(changes):
    target = load("nsa", device="emulator")
    assert refusal(target, Case("nsa", P)) is None
    assert refusal(target, Case("nsa", P.edited(**changes))) is not None


def test_mutants_of_kernels_that_only_hopper_launches_cannot_be_looked_for_elsewhere(monkeypatch):
    from kernels.mutants.nsa.table import MUTANTS

    monkeypatch.setattr(emulated, "cuda_present", lambda: False)
    missing = {name: load(f"nsa!{name}", device="emulator").missing() for name in MUTANTS}
    of_hopper = {name for name, mutant in MUTANTS.items() if "on Hopper" in mutant.summary}
    assert of_hopper and {name for name, why in missing.items() if why and "only a Hopper GPU" in why} == of_hopper


def test_the_script_makes_the_call():
    text = write_script(Case("nsa", P.edited(layout="packed")), load("nsa", device="emulator"), None)
    compile(text, "script", "exec")
    assert "native_sparse_answer(q, k, v, compress_block_size=16" in text
    assert "gate_proj_weight=w_gate" in text


@pytest.mark.nightly
@pytest.mark.compiled_triton
@pytest.mark.parametrize("causal", [True, False, "strict"])
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_the_kernel_is_right_on_the_emulated_gpu(layout, causal):
    lengths = (150,) if layout == "padded" else (70, 0, 97)
    verdict = judged("nsa", P.edited(lengths=lengths, layout=layout, causal=causal))
    assert (verdict.outcome, verdict.findings) == ("pass", ())


@pytest.mark.nightly
@pytest.mark.compiled_triton
def test_mask_words_of_ones_are_written_though_the_poison_is_ones_too():
    """One emulated device writes the masks of four blocks of 16, another one reads them."""
    p = P.edited(lengths=(56,), causal=False, backward=False, w_k=False, w_v=False, w_gate=False)
    verdict = judged("nsa", p)
    assert (verdict.outcome, verdict.findings) == ("pass", ())


@pytest.mark.nightly
@pytest.mark.compiled_triton
def test_tensors_that_begin_off_alignment_are_read():
    verdict = judged("nsa", P.edited(lengths=(70,)), k=Storage(offset=1), v=Storage("sbhd", 1, 1))
    assert (verdict.outcome, verdict.findings) == ("pass", ())


@pytest.mark.nightly
@pytest.mark.compiled_triton
@pytest.mark.parametrize("name", ["nsa", "nsa!gradients_added_in_half"])
def test_a_sum_of_gradients_that_is_rounded_after_each_branch_is_found_where_its_terms_cancel(name):
    verdict = judged(
        name,
        P.edited(lengths=(300,), dim=128, dim_v=128, num_selected_blocks=8, window_size=200, w_k=False, w_v=False),
        distribution="cancelling",
    )
    found = {f.tensor for f in verdict.findings if f.oracle == "accuracy"}
    assert (verdict.outcome, found) == (("pass", set()) if name == "nsa" else ("fail", {"dq"}))


@pytest.mark.nightly
@pytest.mark.compiled_triton
@pytest.mark.parametrize("name", SHOWN)
def test_a_mutant_is_found(name):
    problem = P.edited(num_selected_blocks=5) if name == "future_block_selected" else P
    verdict = judged(f"nsa!{name}", problem.edited(heads_q=4, heads_kv=2) if "kv_heads" in name else problem)
    assert verdict.outcome == "fail"
    assert SHOWN[name] in {f.tensor for f in verdict.findings if f.oracle in ("accuracy", "selection")}
