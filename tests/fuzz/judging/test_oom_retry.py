"""A GPU that several processes share: caches are given back where memory is scarce, what ran out is asked once more."""

from __future__ import annotations

import pytest
import torch
from judge_tools import FAKES
from msgspec.structs import replace

from fuzz.core.case import Case
from fuzz.core.verdict import Finding, Verdict
from fuzz.judging import judge, oom_retry
from fuzz.targets.registry import load
from oracles.problem import Problem

CARD = torch.device("cuda", 0)


class Memory:
    """A card of 100 bytes; `free` is what it has at each look, the last one for ever."""

    def __init__(self, monkeypatch, *free: int) -> None:
        self.free, self.emptied = list(free), 0
        monkeypatch.setattr(oom_retry, "_looked", {})
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (self._look(), 100))
        monkeypatch.setattr(torch.cuda, "empty_cache", self._empty)

    def _look(self) -> int:
        return self.free.pop(0) if len(self.free) > 1 else self.free[0]

    def _empty(self) -> None:
        self.emptied += 1


@pytest.mark.parametrize("free, emptied", [(24, 1), (25, 0), (90, 0)])
def test_what_pytorch_keeps_is_given_back_where_little_is_free(monkeypatch, free, emptied):
    memory = Memory(monkeypatch, free)
    oom_retry.give_back(CARD)
    oom_retry.give_back(torch.device("cpu"))
    assert memory.emptied == emptied


def test_the_card_is_not_looked_at_after_each_small_case(monkeypatch):
    memory, now = Memory(monkeypatch, 24), [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    for _ in range(5):
        oom_retry.give_back(CARD)
    assert memory.emptied == 1
    now[0] += oom_retry.LOOK
    oom_retry.give_back(CARD)
    assert memory.emptied == 2


def test_waits_until_others_let_go_but_not_for_ever(monkeypatch):
    memory = Memory(monkeypatch, 3, 3, 60)
    oom_retry.wait_for_memory(CARD)
    assert memory.emptied == 1 and memory.free == [60]
    oom_retry.wait_for_memory(CARD)
    memory.free = [3]
    oom_retry.wait_for_memory(CARD, patience=0.2)
    assert memory.emptied == 3


def asked(monkeypatch, *outputs):
    """What execute says where the runs end like this, and how many runs there were."""
    Memory(monkeypatch, 50)
    monkeypatch.setattr(judge.perturb, "ready", lambda where: None)
    monkeypatch.setattr(judge, "rehearse", lambda where: None)
    left = list(outputs)

    def run(*_):
        answer = left.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr(judge, "_attempt", run)
    case = Case("fake.honest", Problem((4,), (4,), 1, 1, 8, 8, "float32"))
    try:
        return judge.execute(case, load("fake.honest", FAKES), lambda phase, limit: None, CARD), len(outputs) - len(
            left
        )
    except torch.OutOfMemoryError:
        return None, len(outputs) - len(left)


def test_a_case_that_ran_out_of_memory_is_asked_once_more(monkeypatch):
    passed = Verdict("x", "pass")
    starved = Verdict("x", "crash", (Finding("runner", "out_of_memory", "OutOfMemoryError: CUDA out of memory"),))
    ours = torch.OutOfMemoryError("CUDA out of memory")
    said = {"reason": "run once more: the GPU's memory had run out"}
    assert asked(monkeypatch, passed) == (passed, 1)
    assert asked(monkeypatch, starved, passed) == (replace(passed, **said), 2)
    assert asked(monkeypatch, ours, passed) == (replace(passed, **said), 2)
    hungry = replace(starved, **said)  # a kernel that needs more than there is
    assert asked(monkeypatch, starved, starved, passed) == (hungry, 2)
    assert asked(monkeypatch, ours, ours, passed) == (None, 2)
