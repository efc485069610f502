"""Targets whose Triton kernels run on the emulated GPU: their schedules, and products fused into sums."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from fuzz.core.case import Case, Inputs
from fuzz.devices.emulator.config import AS_WRITTEN, CONTRACTIONS
from fuzz.devices.emulator_schedules import contraction_of, schedule_of
from fuzz.judging.judge import execute
from fuzz.targets.blocksparse.devices import emulator_there
from fuzz.targets.sdpa.emulated import EmulatedSdpa
from oracles.masks import Causal
from oracles.problem import Problem

PROBLEM = Problem((70,), (70,), 1, 1, 32, 32, "float16", mask=Causal())


def test_half_of_the_cases_have_fused_products_of_either_kind():
    found = [contraction_of(seed) for seed in range(40)]
    assert found[::2] == [AS_WRITTEN] * 20
    assert {name: found.count(name) for name in CONTRACTIONS if name != AS_WRITTEN} == {"first": 10, "second": 10}


def test_every_repeat_of_a_case_has_the_same_ones():
    assert schedule_of(0) == {} and schedule_of(0, "first") == {"contraction": "first"}
    assert all(schedule_of(repeat, "second")["contraction"] == "second" for repeat in range(9))
    assert all("contraction" not in schedule_of(repeat) for repeat in range(9))


@dataclass
class Noted:
    """An intercept that changes nothing and keeps the settings of each launch."""

    found: list[str] = field(default_factory=list)

    def programs(self, name, key):
        return None

    def launching(self, config, launch, memory):
        self.found.append(config.contraction)

    def launched(self, name, key, report):
        pass


@pytest.mark.compiled_triton
@pytest.mark.skipif(not emulator_there(), reason="needs the emulator")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the emulated target steps back where there is a GPU")
def test_launches_and_scripts_have_those_of_the_seed():
    pytest.importorskip("triton")
    texts = {}
    for seed in (4, 5, 7):
        target = EmulatedSdpa()
        target.intercept = noted = Noted()
        case = Case(target.name, PROBLEM, inputs=Inputs(seed=seed), repeats=2)
        verdict = execute(case, target, lambda phase, seconds: None)
        assert verdict.outcome == "pass", verdict.findings
        assert set(noted.found) == {contraction_of(seed)}
        texts[seed] = target.script_call(case).emulated
    assert "contraction" not in texts[4]
    assert "contraction='first'" in texts[5] and "contraction='second'" in texts[7]
