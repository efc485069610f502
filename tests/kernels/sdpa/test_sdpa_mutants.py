"""Mutants of kernels.sdpa are wrong in just the results that their summaries name, and hide elsewhere; what the
harness says of all of them is tested in mutants/."""

import pytest
import torch
from sdpa_cases import DEVICE, assert_right, complaints, qkv, run

from kernels.mutants.sdpa.table import MUTANTS
from kernels.sdpa import scaled_dot_product_attention
from kernels.sdpa.injection import InjectionPoints

# Where each shows: sizes of qkv, options, and the results that are wrong; everything else is right.
SHOWN = {
    "unmasked_row_statistics": ((1, 3, 3, 120, 66), {}, {"lse", "dquery", "dkey", "dvalue"}),
    "kv_head_modulo": ((1, 4, 2, 40, 40), {"enable_gqa": True}, {"out", "lse", "dquery", "dkey", "dvalue"}),
    "tail_keys_not_masked": ((1, 2, 2, 40, 70), {}, {"out", "lse", "dquery", "dkey", "dvalue"}),
    "causal_mask_missing_in_backward": ((1, 2, 2, 70, 70), {"is_causal": True}, {"dquery", "dkey", "dvalue"}),
    "causal_off_by_one": ((1, 2, 2, 70, 70), {"is_causal": True}, {"out", "lse", "dquery", "dkey", "dvalue"}),
    "dq_scaled_twice": ((1, 2, 2, 70, 70), {}, {"dquery"}),
}

# Where each hides: the mutant gives the same bits as the correct kernel.
HIDDEN = {
    "unmasked_row_statistics": ((1, 3, 3, 128, 66), {}),
    "kv_head_modulo": ((1, 2, 2, 40, 40), {}),
    "tail_keys_not_masked": ((1, 2, 2, 40, 64), {}),
    "causal_mask_missing_in_backward": ((1, 2, 2, 70, 70), {}),
    "causal_off_by_one": ((1, 2, 2, 70, 70), {}),
    "dq_scaled_twice": ((1, 2, 2, 70, 70), {"scale": 1.0}),
}


@pytest.mark.parametrize("name", SHOWN)
def test_wrong_where_the_correct_kernel_is_right(guarded, name):
    if DEVICE == "cuda" and name == "unmasked_row_statistics":
        pytest.skip("two CTAs write the same rows; which of them is last is not fixed on a GPU")
    sizes, options, wrong = SHOWN[name]
    inputs = qkv(*sizes)
    got = run(MUTANTS[name], inputs, return_lse=True, **options)
    assert set(complaints(got, inputs, **options)) == wrong
    assert_right(run(scaled_dot_product_attention, inputs, return_lse=True, **options), inputs, **options)


@pytest.mark.parametrize("name", SHOWN)
def test_right_where_the_bug_cannot_show(name):
    sizes, options = HIDDEN[name]
    inputs = qkv(*sizes)
    got = run(MUTANTS[name], inputs, return_lse=True, **options)
    wanted = run(scaled_dot_product_attention, inputs, return_lse=True, **options)
    assert all(torch.equal(got[x], wanted[x]) for x in wanted)


def test_unmasked_row_statistics_write_beyond_the_buffer(guarded):
    run(MUTANTS["unmasked_row_statistics"], qkv(1, 3, 3, 120, 66), return_lse=True)
    assert not guarded()


def test_each_mutant_says_what_it_replaces():
    for name, mutant in MUTANTS.items():
        assert mutant.name == name and mutant.summary and mutant.source
        assert set(mutant.point.split(", ")) <= {*InjectionPoints.__dataclass_fields__, "scaled_dot_product_attention"}
