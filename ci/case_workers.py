"""Worker processes of emulator_vs_cuda_cases.py: each judges cases on the devices of its sides and compares answers."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from fuzz.core.case import Case, from_json, to_json
from fuzz.core.target import Target
from oracles.outputs import Outputs

CASE_LIMIT = 60.0  # seconds after which a worker counts as stuck
START_LIMIT = 240.0  # of its first case, which imports and loads
Answers = dict[str, torch.Tensor]  # what a kernel computed, on the CPU, by tensor


def targets(name: str) -> dict[str, Callable[[], Target]]:
    """The target of this name on the emulated GPU and on a GPU: 'emulator', 'cuda'."""
    if name == "blocksparse":
        from fuzz.targets.blocksparse.emulated import EmulatedBlockSparse
        from fuzz.targets.blocksparse.gpu import GpuBlockSparse

        return {"emulator": EmulatedBlockSparse, "cuda": GpuBlockSparse}
    from fuzz.targets.flash_attention_4.emulated import EmulatedFlashAttention4
    from fuzz.targets.flash_attention_4.target import FlashAttention4

    return {"emulator": EmulatedFlashAttention4, "cuda": FlashAttention4}


def judged(case: Case, target: Any) -> tuple[dict[str, Any], Answers | None, Answers | None]:
    """(outcome and findings, the first and the last run's answers).

    No more is kept: what grows with every run is what the judge calls a leak.
    """
    from fuzz.judging.judge import execute

    kept: list[Answers] = []
    run = type(target).run

    def keep(case: Case, tensors: Any) -> Any:
        execution = run(target, case, tensors)
        if len(kept) < 2:
            kept.append({name: x.detach().cpu().clone() for name, x in execution.outputs.items()})
        return execution

    target.run = keep
    verdict = execute(case, target, lambda phase, limit: None)
    found = sorted({f"{f.oracle}/{f.kind}: {f.message}"[:200] for f in verdict.findings})
    said = {"outcome": verdict.outcome, "findings": found}
    return said, kept[0] if kept else None, kept[-1] if kept else None


def distances(case: Case, ours: Answers, theirs: Answers) -> dict[str, dict[str, float | bool]]:
    """Distances by tensor: the largest quotient of their distance and its budget, and whether they are equal to the
    bit."""
    from fuzz.tensors.arena import build
    from oracles.accuracy import judge
    from oracles.error_budget.same_precision import same_precision
    from oracles.numerics import FUSED

    t = build(case, torch.device("cpu")).tensors()
    same = same_precision(case.problem, t.q, t.k, t.v, bias=t.bias, do=t.do, numerics=FUSED)
    want = Outputs(**{name: x.float() for name, x in theirs.items()})
    found = judge(case.problem, Outputs(**ours), want, same)
    words = {2: torch.int16, 4: torch.int32}
    result: dict[str, dict[str, float | bool]] = {}
    for name, mine in ours.items():
        other = theirs[name]
        width = words[mine.element_size()]
        equal = bool((mine.contiguous().view(width) == other.contiguous().view(width)).all())
        ratio = found.worst[name].ratio if name in found.worst else 0.0
        result[name] = {"ratio": round(ratio, 4), "bitwise": equal}
    return result


def work(pipe: Connection, target: str, sides: tuple[str, ...]) -> None:
    """Takes cases (JSON, with the GPU's recorded answers or None) and gives results until the pipe closes."""
    torch.set_num_threads(1)
    made = {side: targets(target)[side]() for side in sides}
    while True:
        try:
            text, recorded = pipe.recv()
        except EOFError:
            return
        start = time.perf_counter()
        try:
            result = one_case(from_json(text), made, recorded)
        except Exception as error:  # of this script: a case's own troubles are in its verdict
            result = {"error": f"{type(error).__name__}: {error}"[:500]}
        result["seconds"] = round(time.perf_counter() - start, 3)
        pipe.send(result)


def one_case(case: Case, made: dict[str, Any], recorded: dict[str, Any] | None) -> dict[str, Any]:
    """Outcomes by side; 'tensors', the distances, where there are two sides; 'answers' of a GPU alone."""
    result: dict[str, Any] = {}
    ours = theirs = None
    start = time.perf_counter()
    if "emulator" in made:
        result["emulator"], ours, theirs = judged(case, made["emulator"])
        result["emulator_seconds"] = round(time.perf_counter() - start, 3)
    if "cuda" in made:
        result["cuda"], theirs, _ = judged(case, made["cuda"])
    elif recorded is not None:
        result["cuda"], theirs = recorded["cuda"], recorded["answers"]
    else:
        result["again"] = result["emulator"]
    if ours is not None and theirs is not None:
        result["tensors"] = distances(case, ours, theirs)
    elif "emulator" not in made:
        result["answers"] = theirs
    return result


@dataclass
class Worker:
    """A process with a pipe, and the case that it has in hand."""

    target: str
    sides: tuple[str, ...]
    case: Case | None = None
    since: float = 0.0
    limit: float = START_LIMIT
    pipe: Connection = field(init=False)
    process: Any = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A fresh process."""
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, self.target, self.sides), daemon=True)
        self.process.start()
        theirs.close()
        self.limit = START_LIMIT

    def give(self, case: Case, recorded: dict[str, Any] | None) -> None:
        self.case, self.since = case, time.monotonic()
        self.pipe.send((to_json(case), recorded))

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def results(
    target: str, sides: tuple[str, ...], given: list[tuple[Case, dict[str, Any] | None]], count: int, until: float
) -> Iterator[tuple[Case, dict[str, Any]] | None]:
    """Each case with its result as it comes, from `count` workers; None once a second. A worker that does not answer is
    killed, and its case has an 'error'. No case is begun after `until` (time.monotonic)."""
    todo = list(reversed(given))
    workers = [Worker(target, sides) for _ in range(min(count, len(given)))]
    try:
        while True:
            for worker in workers:
                if worker.case is None and todo and time.monotonic() < until:
                    worker.give(*todo.pop())
            busy = {w.pipe: w for w in workers if w.case is not None}
            if not busy:
                return
            for pipe in wait(list(busy), timeout=1.0):
                worker = busy.pop(pipe)  # type: ignore[call-overload]
                assert worker.case is not None
                try:
                    result = worker.pipe.recv()
                    worker.limit = CASE_LIMIT
                except (EOFError, OSError):
                    result = {"error": f"the worker ended ({worker.process.exitcode})"}
                    worker.end()
                    worker.start()
                yield worker.case, result
                worker.case = None
            for worker in busy.values():
                if worker.case is not None and time.monotonic() - worker.since > worker.limit:
                    yield worker.case, {"error": f"no answer within {worker.limit:.0f} s"}
                    worker.end()
                    worker.start()
                    worker.case = None
            yield None
    finally:
        for worker in workers:
            worker.end()
