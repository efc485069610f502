"""The process that may die: opens its device, then judges one case after the other until its client is gone.

It holds no state worth saving, so it never has to end in good order. Standard output and error belong to the target.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from fuzz.process.machine_fault import MachineFault
from fuzz.process.turn import turn
from fuzz.runner.copies import Copies
from fuzz.runner.device_probe import DeviceProbe
from fuzz.runner.wire import (
    Answer,
    Connection,
    Entered,
    Failed,
    Gone,
    Observed,
    Open,
    Opened,
    Refused,
    Run,
    Start,
)

if TYPE_CHECKING:
    from fuzz.runner.process_state import ProcessState

# Processes that open a GPU at once; where there are more, the driver has them wait for one another.
OPENING = 4
OPENING_PATIENCE = 5.0  # seconds until one opens it all the same
_BLOCKING_SYNC = 4  # CU_CTX_SCHED_BLOCKING_SYNC


class Workshop:
    """What needs no device and is imported once, in the zygote: the judge, the registry, the targets loaded so far;
    and the global state that every case is to begin with."""

    def __init__(self, start: Start) -> None:
        import msgspec

        from fuzz.core.case import Case

        self.start = start
        self.decode = msgspec.msgpack.Decoder(Case).decode
        self.execute = _resolve(start.execute)
        self._load = _resolve(start.load)
        self.targets: dict[str, Any] = {}
        self.state = _state()

    def load(self, name: str) -> None:
        """Loads a target; global state that its import changes is put back, before another target meets it. Raises
        whatever the user's file raises, and ValueError for state that cannot be put back."""
        if name not in self.targets:
            self.state.begin()
            target = self._load(name, self.start.files, self.start.device.partition(":")[0])
            lost = [change.text for change in self.state.end() if change.lost]
            if lost:
                raise ValueError(f"its import changes global state that cannot be put back: {'; '.join(lost)}")
            self.targets[name] = target


def serve(workshop: Workshop, connection: Connection) -> None:
    """Answers the client's messages until it is gone (raises Gone)."""
    probe, copies = DeviceProbe(partial(_tell, connection)), Copies()
    while True:
        message = connection.receive()
        if isinstance(message, Open):
            connection.send(_open(workshop, message))
        else:
            assert isinstance(message, Run)
            copies.begin()
            answer = _run(workshop, connection, probe, message)
            if isinstance(answer, Answer) and copies.returned():
                answer = Answer(_copied(answer.verdict.case_id), answer.lost)
            connection.send(answer)


def refused(error: BaseException) -> Refused:
    """What is no fault of a case: one line, and the traceback."""
    return Refused(f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error)))


def _open(workshop: Workshop, message: Open) -> Opened | Refused:
    """Takes the device and proves it."""
    import torch

    os.environ.update(message.env)
    torch.set_num_threads(workshop.start.threads)
    try:
        if workshop.start.device.startswith("cuda"):
            with turn("cuda", OPENING, OPENING_PATIENCE):
                _sleep_in_waits()
                _prove_cuda()
    except Exception as error:
        return refused(error)
    workshop.state = _state()  # threads and the environment are set
    return Opened()


def _tell(connection: Connection, seen: dict[str, Any]) -> None:
    with suppress(Gone):  # the main thread finds out
        connection.send(Observed(seen))


def _run(workshop: Workshop, connection: Connection, probe: DeviceProbe, message: Run) -> Answer | Refused | Failed:
    """Judges one case. Only what is no fault of the target is Refused or Failed."""

    def enter(phase: str, limit: float) -> None:
        probe.entered(phase, limit)  # first: what it tells is of the phase that was announced last
        connection.send(Entered(phase, limit))

    case = workshop.decode(message.case)
    if case.target not in workshop.targets:
        enter("load", 0.0)  # the client has a limit of its own for it
        try:
            workshop.load(case.target)
        except BaseException as error:
            return refused(error)
    target = workshop.targets[case.target]
    probe.begin(target)
    traced = target if message.trace and target.traces else None
    if traced is not None:
        traced.trace_to(message.trace)
    workshop.state.begin()
    try:
        answer: Answer | Failed = Answer(workshop.execute(case, target, enter))
    except MachineFault as error:
        answer = Failed(traceback.format_exc(), str(error))
    except Exception:
        answer = Failed(traceback.format_exc())
    except BaseException as error:
        answer = Answer(_left(case.id, error))
    finally:
        probe.end()
        if traced is not None:
            traced.trace_to("")
    return _with_state(case.id, answer, workshop.state)


def _with_state(case_id: str, answer: Answer | Failed, state: ProcessState) -> Answer | Failed:
    """The answer, with a finding of the target where it has changed global state: also in place of a judge that failed,
    as that may be why."""
    from msgspec.structs import replace

    from fuzz.core.verdict import Verdict
    from fuzz.runner.process_state import finding

    changes = state.end()
    if not changes or (isinstance(answer, Failed) and answer.machine):
        return answer
    evidence: dict[str, Any] = {"put_back": state.aside} if state.aside else {}
    if isinstance(answer, Failed):
        answer = Answer(Verdict(case_id, "fail", evidence={"judge": answer.trace}))
    verdict = answer.verdict
    outcome = verdict.outcome if verdict.bad else "fail"
    findings = (*verdict.findings, finding(changes))
    lost = "; ".join(change.text for change in changes if change.lost)
    return Answer(replace(verdict, outcome=outcome, findings=findings, evidence=verdict.evidence | evidence), lost)


def _state() -> ProcessState:
    from fuzz.runner.process_state import ProcessState

    return ProcessState()


def _copied(case_id: str) -> Any:
    """The verdict on a target whose call returns in two processes."""
    from fuzz.core.verdict import Finding, Verdict

    message = "the target forked the process, and the copy came back from its call too"
    return Verdict(case_id, "crash", (Finding(oracle="runner", kind="crash", message=message),))


def _left(case_id: str, error: BaseException) -> Any:
    """The verdict on a target that raised SystemExit or its like."""
    from fuzz.core.verdict import Finding, Verdict

    message = f"the target tried to leave the interpreter: {type(error).__name__}({error})"
    trace = "".join(traceback.format_exception(error))
    finding = Finding(oracle="runner", kind="crash", message=message)
    return Verdict(case_id, "crash", (finding,), evidence={"python_stack": trace, "exit": type(error).__name__})


def _sleep_in_waits() -> None:
    """Has CUDA wait for the device asleep: where many processes share one GPU, one that spins takes a core from the
    oracles of another. To be called before CUDA starts; where the driver does not take it, waits spin."""
    with suppress(OSError, AttributeError):
        driver = ctypes.CDLL("libcuda.so.1")
        device = ctypes.c_int(0)
        if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
            driver.cuDevicePrimaryCtxSetFlags_v2(device, _BLOCKING_SYNC)


def _prove_cuda() -> None:
    """Allocates, runs a tiny kernel, compares. Raises RuntimeError where that does not work."""
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError(f"torch {torch.__version__} sees no CUDA device")
    numbers = torch.arange(4096, device="cuda", dtype=torch.float64)
    found = (numbers * numbers + 1).sum().item()
    wanted = 4095 * 4096 * 8191 / 6 + 4096
    if found != wanted:
        raise RuntimeError(f"{torch.cuda.get_device_name()} computes {found} where {wanted} is right")


def _resolve(name: str) -> Callable[..., Any]:
    """'package.module:function'."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)
