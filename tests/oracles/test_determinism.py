"""Determinism: bits are compared, NaN equals itself, and a finding counts runs and elements."""

from __future__ import annotations

import pytest
import torch

from oracles.determinism import compare
from oracles.outputs import Outputs


def runs(count: int = 4, dtype: torch.dtype = torch.bfloat16) -> list[Outputs]:
    """Equal answers, each in memory of its own: o with a NaN, dq strided."""
    generator = torch.Generator().manual_seed(0)
    o, dq = (torch.randn(2, 3, 8, 4, generator=generator).to(dtype) for _ in range(2))
    o[0, 0, 0, 0] = torch.nan
    lse = torch.randn(2, 3, 8, generator=generator)
    return [
        Outputs(o.clone(), lse.clone(), dq.clone().transpose(2, 3).contiguous().transpose(2, 3)) for _ in range(count)
    ]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_equal_runs_give_nothing(dtype: torch.dtype) -> None:
    assert compare(runs(dtype=dtype)) == []
    assert compare(runs(1)) == []


def test_one_element_of_one_run_is_found() -> None:
    found = runs()
    found[2].dq[1, 2, 5, 3] += 1.0
    (finding,) = compare(found)
    assert (finding.oracle, finding.kind, finding.tensor) == ("determinism", "nondeterministic", "dq")
    assert (finding.place.batch, finding.place.head, finding.place.rows) == (1, 2, (5, 6))
    assert finding.numbers["differs"] == 1 and finding.numbers["repeats"] == 3 and finding.numbers["elements"] == 1
    assert 0.9 < finding.numbers["largest"] < 1.1


def test_each_tensor_has_its_own_finding_and_the_worst_run_counts() -> None:
    found = runs()
    found[1].lse[0, 1, 2] += 1e-6
    for run in found[1:]:
        run.o[0, 0, 1] += 1.0
    found[3].o[1] += 1.0
    by_tensor = {f.tensor: f for f in compare(found)}
    assert set(by_tensor) == {"o", "lse"}
    assert by_tensor["o"].numbers["differs"] == 3 and by_tensor["o"].numbers["elements"] == 4 + 96
    assert by_tensor["lse"].place.rows == (2, 3)


def test_signed_zeros_differ() -> None:
    found = runs(2, torch.float32)
    found[0].dq[0, 0, 0, 0], found[1].dq[0, 0, 0, 0] = 0.0, -0.0
    assert [f.tensor for f in compare(found)] == ["dq"]


def test_a_nan_that_comes_and_goes_is_found() -> None:
    found = runs(2)
    found[1].o[1, 1, 1, 1] = torch.nan
    assert [f.tensor for f in compare(found)] == ["o"]


def test_packed_places() -> None:
    a = Outputs(torch.zeros(9, 2, 4), torch.zeros(2, 9))
    b = Outputs(torch.zeros(9, 2, 4), torch.zeros(2, 9))
    b.o[7, 1, 0] = b.lse[1, 6] = 1.0
    o, lse = compare([a, b])
    assert (o.place.head, o.place.rows) == (1, (7, 8)) and (lse.place.head, lse.place.rows) == (1, (6, 7))


def test_empty_tensors_and_runs_that_hold_different_tensors() -> None:
    empty = Outputs(torch.zeros(1, 2, 0, 4))
    assert compare([empty, empty]) == []
    with pytest.raises(ValueError, match="runs: the first one holds"):
        compare([empty, Outputs(torch.zeros(1, 2, 0, 4), torch.zeros(1, 2, 0))])
