"""A judge that only runs: the runner's tests need its phases, not its oracles."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch

from fuzz.core.case import Case
from fuzz.core.verdict import Verdict
from fuzz.targets import Target, Tensors
from fuzz.targets.registry import load  # noqa: F401 (beside `execute`, where the runner looks for both)
from oracles.problem import shapes


def execute(case: Case, target: Target, enter: Callable[[str, float], None]) -> Verdict:
    """Random inputs, one run, the sum of O as the reason."""
    enter("inputs", 10.0)
    p = case.problem
    made = {name: torch.randn(shape, dtype=torch.float32) for name, shape in shapes(p).items()}
    q, k, v, do = (made[name].to(p.torch_dtype) for name in ("q", "k", "v", "do"))
    tensors = Tensors(q, k, v, do if p.backward else None, made.get("bias"))
    enter("reference", 10.0)
    enter("prepare", 60.0)
    target.prepare(case, tensors)
    enter("run", 0.1)
    try:
        execution = target.run(case, tensors)
    except Exception as error:
        return Verdict(case.id, "fail", reason=f"{type(error).__name__}: {error}")
    enter("judge", 10.0)
    return Verdict(case.id, "pass", kernel=execution.kernel)


def only_messages(case: Case, target: Target, enter: Callable[[str, float], None]) -> Verdict:
    """All phases, no work: what is left is the runner's own cost."""
    for phase in ("inputs", "reference", "prepare", "run", "judge"):
        enter(phase, 1.0)
    return Verdict(case.id, "pass")


def loses_its_context(case: Case, target: Target, enter: Callable[[str, float], None]) -> Verdict:
    """As after an illegal access on a GPU. The kernel's name is the process."""
    enter("run", 1.0)
    return Verdict(case.id, "crash", kernel=str(os.getpid()), evidence={"context_lost": True})


def answers_about_another(case: Case, target: Target, enter: Callable[[str, float], None]) -> Verdict:
    """As a process that answers a question of before."""
    enter("run", 1.0)
    return Verdict("another", "pass")


def goes_on(case: Case, target: Target, enter: Callable[[str, float], None]) -> Verdict:
    """A run that ends a little later than it may, and a judge that takes its time."""
    enter("run", 0.1)
    time.sleep(2.0)
    enter("judge", 10.0)
    time.sleep(2.0)
    return Verdict(case.id, "pass")


def hangs_after_a_slow_run(case: Case, target: Target, enter: Callable[[str, float], None]) -> Verdict:
    """Never comes back from judging."""
    verdict = execute(case, target, enter)
    enter("judge", 0.1)
    time.sleep(3600)
    return verdict


def raises(case: Case, target: Target, enter: Callable[[str, float], None]) -> Verdict:
    """A judge with a bug."""
    raise KeyError("no such oracle")


def dies_later(case: Case, target: Target, enter: Callable[[str, float], None]) -> Verdict:
    """Answers, and the process ends before the next case comes."""
    import threading

    threading.Timer(0.1, os._exit, (7,)).start()
    return Verdict(case.id, "pass")


def sleeps_in_load(name: str, files: tuple[str, ...], device: str) -> Target:
    """A user's file that never finishes importing."""
    time.sleep(3600)
    raise AssertionError
