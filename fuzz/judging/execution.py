"""Running a case's kernel: repeats and variations, each with its own inputs, guard bands and load, within a deadline.

Each phase is announced with the seconds that it may take, so the client's clock starts when the phase does: compiling
never counts against a run's deadline. What the kernel raises leaves here as Raised.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from fuzz.core.case import Case
from fuzz.core.target import Execution, Target
from fuzz.core.verdict import WROTE_OUTSIDE, Finding, Location
from fuzz.judging.follow_up import FollowUp
from fuzz.judging.perturb import perturbed
from fuzz.process.machine_fault import MachineFault
from fuzz.runner import process_state
from fuzz.tensors.arena import Arena, on_device
from fuzz.tensors.guard_bands import POISON, Guarded, poison_cuda, poisoned_malloc
from fuzz.tensors.to_cpu import to_cpu
from oracles.outputs import Outputs
from oracles.problem import AnyProblem, shapes

Enter = Callable[[str, float], None]

INPUTS_LIMIT = 36.0  # a phase is called hung at ten times its limit
PREPARE_LIMIT = 180.0
HARNESS = "harness"  # pattern of the place of a write into the harness's own memory
_REFERENCE_CHANGED = (
    "the kernel wrote outside its tensors, into memory of the harness: the right answer, computed before the run, is "
    "another one after it"
)
FLOOR = {"host": 0.5, "cuda": 1.0, "emulator": 10.0, "interpreter": 0.5}
MARGIN = 10.0


@dataclass
class Clock:
    """Seconds by phase, and the announcement of each."""

    enter: Enter
    seconds: dict[str, float] = field(default_factory=dict)
    _phase: str = ""
    _since: float = 0.0

    def start(self, phase: str, limit: float) -> None:
        """Ends the phase before and begins `phase`."""
        self.stop()
        self._phase, self._since = phase, time.perf_counter()
        self.enter(phase, limit)

    def book(self, phase: str) -> None:
        """Books what follows under another name; what was announced still runs, and nobody is told."""
        self.stop()
        self._phase, self._since = phase, time.perf_counter()

    def stop(self) -> None:
        """Books the time of the phase that is running."""
        if self._phase:
            spent = time.perf_counter() - self._since
            self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + spent
            self._phase = ""

    def rounded(self) -> dict[str, float]:
        """Seconds by phase, to the microsecond."""
        return {phase: round(spent, 6) for phase, spent in self.seconds.items()}


class Raised(Exception):
    """The kernel raised; carries the exception."""

    def __init__(self, error: BaseException, warned: list[str]) -> None:
        super().__init__(str(error))
        self.error = error
        self.warned = warned
        self.subject = ""  # the title of the follow-up case whose run raised; "": a run of the case itself
        self.follow_up: Case | None = None  # and that case


def deadline(target: Target, case: Case, runs: int = 1) -> float:
    """Seconds that so many runs may take: about ten times the expected time, with a floor."""
    return max(FLOOR[target.device], MARGIN * runs * target.expected_seconds(case))


@dataclass
class Runs:
    """The runs of one case, the repeats first: each with its own copy of its inputs and its own guard bands, looked at
    afterwards. `arenas` are the copies, each beside what it is to be compared with."""

    device: torch.device
    executions: list[Execution] = field(default_factory=list)
    arenas: list[tuple[Arena, Arena]] = field(default_factory=list)
    guards: list[Guarded] = field(default_factory=list)
    written: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))

    def collect(self, home: torch.device) -> None:
        """Looks, without waiting, at what was written where it must not be; brings the answers home, waiting once."""
        if self.device.type == "cpu":
            intact = all(arena.same(pristine) for arena, pristine in self.arenas)
            self.written = torch.tensor([not intact, *(guard.touched_here() for guard in self.guards)])
            return
        now, was = ([pair[i].words() for pair in self.arenas] for i in (0, 1))
        if home != self.device:  # a small case, for which every launch counts
            now, was = [torch.cat(now)], [torch.cat(was)]
        changed = [(x != y).any() for x, y in zip(now, was, strict=True)]
        touched = [guard.touched(self.device) for guard in self.guards if guard.allocated()]
        self.written = torch.stack([*changed, *touched])
        if home != self.device:
            outputs, self.written = to_cpu([e.outputs for e in self.executions], self.written)
            self.executions = [replace(e, outputs=a) for e, a in zip(self.executions, outputs, strict=True)]

    def memory_findings(self, broken: Tensor) -> list[Finding]:
        """What was written where it must not be; one synchronisation when all is well.

        broken  bool scalar: the reference changed while the kernel ran; nothing can be compared with it then
        """
        if not bool(torch.cat([broken[None], self.written]).any()):
            return []
        if bool(broken):
            return [Finding("memory", WROTE_OUTSIDE, _REFERENCE_CHANGED, place=Location(pattern=HARNESS))]
        for arena, pristine in self.arenas:
            if found := arena.changes(pristine):
                return found
        for guard in self.guards:
            if found := guard.check():
                return found
        return []

    def fresh(self, pristine: Arena) -> Arena:
        """A copy of the inputs for one run, which is looked at afterwards."""
        arena = pristine.copy()
        self.arenas.append((arena, pristine))
        return arena


@cache
def rehearse(device: torch.device) -> None:
    """Looks once, on a GPU, at runs of nothing: functions are loaded there when they are first called, and that waits
    for kernels that run. After one that hangs, the first look at its runs would hang too, and what explains it."""
    if device.type == "cpu":
        return
    for home in (device, torch.device("cpu")):
        runs, pristine = Runs(device), Arena(torch.zeros(512, dtype=torch.uint8, device=device), ())
        for _ in range(3):
            runs.fresh(pristine)
            with Guarded() as guard:
                outputs = Outputs(*(torch.empty(8, dtype=kind, device=device) for kind in (torch.half, torch.float)))
            runs.guards.append(guard)
            runs.executions.append(Execution(outputs, ""))
        runs.collect(home)
        runs.memory_findings(torch.zeros((), dtype=torch.bool, device=home))


def run_all(
    case: Case, target: Target, source: Arena, device: torch.device, clock: Clock, follow_ups: Sequence[FollowUp]
) -> Runs:
    """Prepares once and runs `repeats` times, each time at other addresses and under another load; then the follow-up
    cases.

    On a GPU all runs are queued one after the other and waited for once, within the deadline of all of them: with
    many processes on one device every wait costs a time slice. The answers come back to where the inputs `source` are.
    """
    home, runs = source.buffer.device, Runs(device)
    there = _all_on_device(source, follow_ups, device)
    pristine = there[id(source)]
    first = runs.fresh(pristine)
    clock.start("prepare", PREPARE_LIMIT)
    queued = device.type == "cuda"
    limit, each = deadline(target, case, case.repeats), deadline(target, case)
    with _poisoned(device):
        call(lambda: target.prepare(case, first.tensors()))
        clock.start("run", limit) if queued else clock.book("judge")
        for repeat in range(case.repeats):
            arena = first if repeat == 0 else runs.fresh(pristine)
            if queued:
                poison_cuda(_output_sizes(case.problem), device)
            given = arena.tensors()
            with perturbed(repeat, device, emulated=target.device == "emulator"), Guarded() as guard:
                if not queued:
                    clock.start("run", each)
                execution = call(partial(target.run, case, given))
                if not queued:
                    clock.start("judge", INPUTS_LIMIT)
            runs.executions.append(execution)
            runs.guards.append(guard)
    for follow_up in follow_ups:
        limit += _run_follow_up(follow_up, there, target, runs, clock, limit if queued else 0.0)
    call(partial(runs.collect, home))
    if queued and home == device:
        call(partial(torch.cuda.synchronize, device))
    return runs


def _all_on_device(source: Arena, follow_ups: Sequence[FollowUp], device: torch.device) -> dict[int, Arena]:
    """The inputs of a case and of its follow-up cases on `device`, by the id of each arena: moved before any run is
    queued, as a later copy would wait for what is."""
    inputs = [source, *(x for f in follow_ups for x in (f.pristine, f.others) if x is not None)]
    each = list({id(arena): arena for arena in inputs}.values())
    return {id(arena): moved for arena, moved in zip(each, on_device(each, device), strict=True)}


def _run_follow_up(
    follow_up: FollowUp, there: dict[int, Arena], target: Target, runs: Runs, clock: Clock, before: float
) -> float:
    """Adds one follow-up case to the runs; returns the seconds that it may take. there: the inputs on the device;
    before: seconds of what is queued on a GPU."""
    arena = runs.fresh(there[id(follow_up.pristine)])
    others = runs.fresh(there[id(follow_up.others)]) if follow_up.others is not None else None
    limit = deadline(target, follow_up.case, 1 if others is None else 2)
    clock.start("prepare", PREPARE_LIMIT)
    try:
        with _poisoned(runs.device):
            call(lambda: target.prepare(follow_up.case, arena.tensors()))
        if runs.device.type == "cuda":
            poison_cuda(_output_sizes(follow_up.case.problem), runs.device, follow_up.poison)
        clock.start("run", before + limit)
        with _poisoned(runs.device, follow_up.poison), Guarded(follow_up.poison) as guard:
            execution = call(
                lambda: follow_up.run(target, arena.tensors(), None if others is None else others.tensors())
            )
    except Raised as raised:
        raised.subject, raised.follow_up = follow_up.title, follow_up.case
        raise
    runs.executions.append(execution)
    runs.guards.append(guard)
    return limit


def _poisoned(device: torch.device, poison: int = POISON) -> AbstractContextManager[None]:
    return poisoned_malloc(poison) if device.type == "cpu" else nullcontext()


def call(work: Callable[[], Any]) -> Any:
    """Runs the target; what it raises is wrapped, with the warnings that came before (they often say why), but for a
    MachineFault. PyTorch's settings are then as they were before."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            return process_state.call(work)
        except MachineFault:
            raise
        except Exception as error:
            said = [str(w.message).split(" (Triggered internally")[0] for w in caught]
            raise Raised(error, said) from error


def _output_sizes(problem: AnyProblem) -> tuple[int, ...]:
    """Bytes of O, LSE and the gradients, to poison blocks of their size."""
    shape, width = shapes(problem), problem.torch_dtype.itemsize
    names = ("o", "lse", "dq", "dk", "dv", *(f"d{name}" for name in problem.weights), *problem.choices)
    wide = ("lse", *problem.choices)
    return tuple(math.prod(shape[name]) * (4 if name in wide else width) for name in names if name in shape)
