"""kernels.dynamic_mask gives plain PyTorch's results: every shape of mask and bias, both layouts, both directions."""

import random

import pytest
import torch
from covering import daily
from dynamic_mask_cases import DEVICE, Call, complaints, drawn

ON_GPU = DEVICE == "cuda"
DAILY = ("packed sequences", "aligned rows")
CALLS = {
    "plain": Call(),
    "mask of KV heads, bias of one row": Call((66,), (130,), 4, 2, mask="1kff", bias="fk1f", kept=0.2),
    "packed words, causal": Call((70,), (129,), mask="11ff", bits=True, causal="bottom_right", kept=0.3),
    "softcap, whole bias": Call((65,), (70,), bias="ffff", softcap=2.0, dim=24),
    "packed sequences": Call((40, 0, 66), (70, 5, 1), 2, 1, mask="f1ff", bias="f11f", packed=True, causal="top_left"),
    "parts of sums": Call((130,), (64,), mask="1fff", num_splits=2, kept=0.3, dtype=torch.bfloat16),
    "parts in any order": Call((200,), (64,), 2, 1, mask="1fff", num_splits=3, deterministic=False, kept=0.3),
    "aligned rows": Call((64,), (96,), 2, 1, dim=32, dim_v=32, mask="1kff", bias="1kff", kept=0.4),
}


@pytest.mark.parametrize("name", CALLS if ON_GPU else daily(tuple(CALLS), DAILY))
def test_right(guarded, name):
    assert not complaints(CALLS[name])
    assert guarded()


@pytest.mark.parametrize("seed", range(60 if ON_GPU else 12))
@pytest.mark.nightly
def test_drawn_calls_are_right(seed):
    call = drawn(random.Random(seed), 513 if ON_GPU else 130)
    assert not complaints(call), call
