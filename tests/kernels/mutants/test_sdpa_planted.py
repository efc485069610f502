"""Each mutant of kernels.sdpa fails under the harness on a small case that the correct kernel passes."""

import pytest
import torch
from msgspec.structs import replace
from sdpa_shown import SHOWN

from fuzz.judging.judge import execute
from fuzz.targets.sdpa import BundledSdpa
from kernels.mutants.sdpa.table import MUTANTS

DEVICE = "cuda" if torch.cuda.is_available() else "host"


def verdict(name, case):
    target = BundledSdpa(DEVICE, name)
    return execute(replace(case, target=target.name), target, lambda phase, limit: None)


@pytest.mark.parametrize("name", MUTANTS)
def test_wrong_where_the_correct_kernel_passes(name):
    case, told = SHOWN[name]
    found = verdict(name, case)
    assert found.outcome == "fail", found
    assert told & {f"{f.tensor} {f.kind}".strip() for f in found.findings}, found.findings
    assert verdict("", case).outcome == "pass"


def test_each_is_shown():
    assert set(SHOWN) == set(MUTANTS)
