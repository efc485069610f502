"""Answers come home bit for bit, with their strides, whatever they are."""

from __future__ import annotations

import pytest
import torch

from fuzz.core.case import Case
from fuzz.judging.judge import WORK_ON_CPU, oracle_device
from fuzz.tensors.to_cpu import to_cpu
from oracles.outputs import Outputs
from oracles.problem import Problem

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


def outputs(device: str, seed: int) -> Outputs:
    """Odd sizes, three dtypes, a transposed tensor, one with gaps, an empty one."""
    torch.manual_seed(seed)
    made = {
        "o": torch.randn(2, 3, 5, 7, dtype=torch.bfloat16).transpose(1, 2),
        "lse": torch.randn(2, 3, 5, dtype=torch.float64),
        "dq": torch.randn(2, 3, 5, 14, dtype=torch.bfloat16)[..., ::2],
        "dk": torch.randn(2, 0, 5, 7),
        "dv": torch.randn(1, 1, 3, 1).expand(2, 1, 3, 4),
    }
    return Outputs(**{name: x.to(device) for name, x in made.items()})


@pytest.mark.parametrize("device", DEVICES)
def test_answers_arrive_as_they_were(device):
    runs = [outputs(device, seed) for seed in range(3)]
    flags = torch.tensor([True, False, True], device=device)
    home, seen = to_cpu(runs, flags)
    assert seen.tolist() == [True, False, True]
    for before, after in zip(runs, home, strict=True):
        for name, x in before.items():
            y = getattr(after, name)
            assert y.device.type == "cpu" and y.dtype == x.dtype and y.shape == x.shape
            assert torch.equal(y, x.cpu()), name
    assert home[0].o.stride() == runs[0].o.stride()


def test_nan_keeps_its_bits():
    bits = torch.tensor([0x7FC12345, -1, 0x7F800001], dtype=torch.int32)
    (home,), _ = to_cpu([Outputs(bits.view(torch.float32))], torch.zeros(1, dtype=torch.bool))
    assert torch.equal(home.o.view(torch.int32), bits)


def test_what_is_no_tensor_is_passed_on():
    (home,), _ = to_cpu([Outputs("nothing", dq=[1, 2])], torch.zeros(2, dtype=torch.bool))  # type: ignore[arg-type]
    assert home.o == "nothing" and home.dq == [1, 2]


def test_small_cases_are_judged_on_the_cpu():
    cuda = torch.device("cuda")
    small = Case("torch.sdpa.math", Problem((64,), (64,), 2, 2, 64, 64, "float16"))
    large = Case("torch.sdpa.math", Problem((2048,), (2048,), 2, 2, 64, 64, "float16"))
    assert large.problem.pairs * 64 > WORK_ON_CPU
    assert oracle_device(small, cuda).type == "cpu"
    assert oracle_device(large, cuda) == cuda
