"""Runner: what the harness calls. Owns one child bound to one device, and replaces it when a case costs it its life."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from fuzz.core.verdict import WROTE_OUTSIDE, Verdict
from fuzz.process import triton_mode
from fuzz.process.exits import exit_name, innermost, last_line
from fuzz.process.forked import ONE_THREAD, may_fork
from fuzz.process.tool import Tool
from fuzz.runner import gpu, lost_case, proc_stats
from fuzz.runner.deadline import BEGIN, LOAD, Deadline, Died, Ended, Grown, Hung, Replied
from fuzz.runner.errors import HarnessError, KilledError, MachineError, RunnerError
from fuzz.runner.limits import Limits, for_device
from fuzz.runner.pace import Pace
from fuzz.runner.process import Child, Zygote, ended_early
from fuzz.runner.wire import Answer, Failed, Gone, Open, Opened, Refused, Run, Start

if TYPE_CHECKING:
    from fuzz.core.case import Case

ATTEMPTS = 3  # to have a child, where somebody kills it as it starts


@dataclass
class _Pending:
    """A case that the child has; `note`: what is to be said of the child before."""

    case: Case
    message: Run
    began: float
    note: str = ""


class Runner:
    """Runs cases in a process of their own. One thread at a time; any number of Runners side by side.

    device     'host', 'emulator' (the emulated GPU), or 'cuda:N': the Nth of CUDA_VISIBLE_DEVICES, in nvidia-smi's
               order; the child sees no other GPU
    files      user modules with targets, passed on to the registry
    threads    of torch on the host
    limits     all times and sizes; None: the device's defaults
    keep       a folder for GPU core files, `<case id>.core`; None: they are summed up and deleted
    core_dump  whether children are started so that a GPU core dump can be asked for
    execute, load  where the child finds the judge and the registry, 'module:function'

    The child is started by the first `run` (or `start`). Raises ValueError on a bad device.
    """

    def __init__(
        self,
        device: str = "host",
        *,
        files: tuple[str, ...] = (),
        threads: int = 1,
        limits: Limits | None = None,
        keep: Path | None = None,
        core_dump: bool = True,
        execute: str = "fuzz.judging.judge:execute",
        load: str = "fuzz.targets.registry:load",
    ) -> None:
        self.device = device
        self._env = gpu.environment(device) | (triton_mode.environment(files, device) if gpu.without(device) else {})
        self._limits = limits or for_device(device)
        self._start = Start(device, threads, tuple(files), execute, load)
        self._keep = keep
        self._core_dump = core_dump and not gpu.without(device)
        self._zygote: Zygote | None = None
        self._spare: Zygote | None = None
        self._child: Child | None = None
        self._loaded: set[str] = set()
        self._pace = Pace(self._limits.floor)
        self._before = ""
        self._pending: _Pending | None = None
        self._busy = threading.Lock()
        self._gpu: Tool | None = None
        self._cap = proc_stats.cap(self._limits.memory)
        self._oom_kills = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Process id of the child that would take the next case, if it is there."""
        return self._child.pid if self._child is not None else None

    @property
    def forks(self) -> bool | None:
        """True where a lost child costs a fork only; False where the zygote has threads or a device; None before."""
        return None if self._child is None else self._child.pid != self._child.zygote.pid

    def start(self) -> None:
        """Starts the child and proves its device, which `run` does too when it is due. Raises RunnerError."""
        self._ready()

    def fork_zygote(self) -> None:
        """Makes the first zygote a fork of this process, which must have imported what a zygote needs and started no
        thread yet: where it has one, the zygote is a process that imports for itself."""
        if may_fork():
            self._zygote = self._launch(fork=True)

    def run(self, case: Case, trace: Path | None = None) -> Verdict:
        """Judges one case. A hang or a crash is a Verdict; the next case finds a fresh child.

        trace  where a target with a `trace_to` writes the timeline of the run; others write none

        Raises RunnerError when no child can be had or the target cannot be loaded, HarnessError when the judge itself
        raised, MachineError where the machine kept the case from being run. On KeyboardInterrupt (or any other
        exception) the children are killed first.
        """
        self.submit(case, trace)
        return self.collect()

    def submit(self, case: Case, trace: Path | None = None) -> None:
        """Hands one case to the child and does not wait; `collect` gives its verdict. Raises as `run` does."""
        message = Run(msgspec.msgpack.encode(case), "" if trace is None else str(trace.resolve()))
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("a Runner runs one case at a time; make one Runner per thread")
        self._pending = _Pending(case, message, monotonic())
        with self._ending():
            self._send(self._pending)

    def collect(self) -> Verdict:
        """Waits for the case that was submitted. Raises as `run` does."""
        pending = self._pending
        if pending is None:
            raise RuntimeError("no case was submitted")
        with self._ending():
            verdict = self._collected(pending)
        self._free()
        spent = monotonic() - pending.began
        seconds = verdict.seconds | {"overhead": max(0.0, spent - sum(verdict.seconds.values()))}
        return msgspec.structs.replace(verdict, seconds=seconds)

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """What ends a case otherwise than with a verdict frees the Runner; but for RunnerError the children go too."""
        try:
            yield
        except RunnerError:
            self._free()
            raise
        except BaseException:
            self.close()
            raise

    def _free(self) -> None:
        if self._pending is not None:
            self._pending = None
            self._busy.release()

    def fresh(self) -> None:
        """Ends the child: the next case has one that has run nothing."""
        if self._child is not None:
            self._replace()

    def close(self) -> None:
        """Kills the children. The Runner can be used again: the next case starts a fresh one."""
        self._free()
        self._kill_all()

    def _kill_all(self) -> None:
        owned, self._child, self._spare, self._zygote = (self._child, self._spare, self._zygote), None, None, None
        for process in owned:
            if process is not None:
                process.close()

    def _send(self, pending: _Pending) -> None:
        """Gives the case to a child that is fit for it."""
        child = self._ready()
        if proc_stats.resident(child.pid) - child.resident > self._cap // 2:
            # Whose leak it is cannot be told from the next case, so that one does not pay for it.
            grown = proc_stats.resident(child.pid) >> 20
            pending.note = f"the child had grown to {grown} MiB and was replaced; {self._before}"
            self._replace()
            child = self._ready()
        child.zygote.forget_output()
        with contextlib.suppress(Gone):  # the watch finds it dead
            child.connection.send(pending.message)

    def _collected(self, pending: _Pending) -> Verdict:
        ended = self._follow(pending.case)
        if isinstance(ended, Died) and ended.trail.phase == BEGIN:
            assert self._child is not None
            self._child.wait(1.0)
            # It died between two cases: this one has not begun, so it is not lost, but neither is the death forgotten.
            pending.note = f"the child ended between cases, {exit_name(self._drop())}; {self._before}"
            self._send(pending)
            ended = self._follow(pending.case)
        self._before = f"its last case was {pending.case.id}"
        verdict = self._judged(pending.case, ended)
        return _noted(verdict, {"between_cases": pending.note}) if pending.note else verdict

    def _follow(self, case: Case) -> Ended:
        assert self._child is not None
        allowed, ended = self._limits_of(case)
        return Deadline(
            self._child, self._limits, self._cap, allowed, ended, self._prepare_spare, self._ask_gpu
        ).follow()

    def _judged(self, case: Case, ended: Ended) -> Verdict:
        """Verdict of how a case ended; takes the last evidence and replaces the child where it is lost."""
        if isinstance(ended, Replied):
            return self._answered(case, ended)
        assert self._child is not None
        if isinstance(ended, Hung):
            more = self._device_evidence(self._child, case)
            output = self._child.zygote.output()
            self._replace()
            if ended.trail.phase == LOAD:
                where = innermost(ended.later.text)
                raise RunnerError(f"{case.target}: not loaded after {ended.trail.elapsed:.0f} s, in {where}")
            return lost_case.hung(case.id, ended, output, more)
        if isinstance(ended, Grown):
            output = self._child.zygote.output()
            self._replace()
            return lost_case.grown(case.id, ended, output)
        alive = not self._child.wait(1.0)
        output = self._child.zygote.output()
        starved = proc_stats.oom_kills() > self._oom_kills
        code = self._replace()
        if ended.trail.phase == LOAD:
            raise RunnerError(f"{case.target}: the child died while loading it, {exit_name(code)}: {last_line(output)}")
        return lost_case.died(case.id, ended, code, output, starved=starved, alive=alive)

    def _answered(self, case: Case, ended: Replied) -> Verdict:
        message = ended.message
        if isinstance(message, Refused):
            raise RunnerError(f"{case.target}: cannot be loaded: {message.line}\n{message.trace}")
        if isinstance(message, Failed) and message.machine:
            raise MachineError(f"{case.target}: case {case.id} was not run: {message.machine}")
        if isinstance(message, Failed):
            raise HarnessError(f"the judge failed on case {case.id}:\n{message.trace}")
        assert isinstance(message, Answer)
        self._loaded.add(case.target)
        verdict = message.verdict
        if verdict.case_id != case.id:
            assert self._child is not None
            output = self._child.zygote.output()
            self._replace()
            return lost_case.of_another(case.id, verdict.case_id, ended.trail, output)
        wrote_outside = any(f.kind == WROTE_OUTSIDE for f in verdict.findings)
        if verdict.evidence.get("context_lost") or wrote_outside or message.lost:
            self._replace()  # what it says from now on is not to be trusted
        if ended.trail.slow:
            reasons = [text for text in (verdict.reason, lost_case.slowness(ended.trail.slow)) if text]
            verdict = msgspec.structs.replace(verdict, reason="; ".join(reasons))
        return verdict

    def _limits_of(self, case: Case) -> tuple[Callable[[str, float], float], Callable[[str, float, float], None]]:
        """A phase's limit, from what is announced and this session's pace; and what learns from a phase that ended.
        Loading has a limit of its own."""
        limits, pace, kernel = self._limits, self._pace, (case.target, str(case.problem.backward))

        def allowed(phase: str, announced: float) -> float:
            return limits.load / limits.confirm if phase == LOAD else pace.limit((*kernel, phase), announced)

        def ended(phase: str, announced: float, seconds: float) -> None:
            pace.ended((*kernel, phase), announced, seconds)

        return allowed, ended

    def _device_evidence(self, child: Child, case: Case) -> dict[str, Any]:
        """What only the device can tell; a core dump ends the child."""
        if gpu.without(self.device):
            return {}
        found: dict[str, Any] = {"gpu": gpu.answered(self._gpu)}
        self._gpu = None
        if child.core is not None:
            keep = self._keep / f"{case.id}.core" if self._keep is not None else None
            found["core_dump"] = child.core.take(self._limits, keep)
        return found

    def _ask_gpu(self) -> None:
        self._gpu = gpu.ask(self.device, self._limits) if not gpu.without(self.device) else None

    def _ready(self) -> Child:
        """The child, with its imports done and its device proven. One that is killed from outside before that is
        replaced, ATTEMPTS times in all. Raises RunnerError."""
        if self._child is not None:
            return self._child
        for attempt in range(1, ATTEMPTS + 1):
            try:
                child = self._child = self._next_zygote().fork(self._loaded)
                self._open(child)
                break
            except RunnerError as error:
                self._kill_all()
                if not isinstance(error, KilledError) or attempt == ATTEMPTS:
                    self._free()
                    raise RunnerError(f"{self.device}: {error}") from None
            except BaseException:
                self.close()
                raise
        self._oom_kills = proc_stats.oom_kills()
        child.resident = proc_stats.resident(child.pid)
        return child

    def _open(self, child: Child) -> None:
        """Has the child prove its device."""
        doing, limit = f"opening {self.device}", self._limits.open
        child.core = gpu.CoreDump() if self._core_dump else None
        until = monotonic() + limit
        message = None
        try:
            child.connection.send(Open(child.core.environment if child.core else {}))
            while message is None:
                message = child.connection.receive(self._limits.tick)
                if message is None and monotonic() > until:
                    where = innermost(child.dump_by_signal()) or "native code"
                    raise RunnerError(f"not done {doing} after {limit:g} s, in {where}")
        except Gone:
            child.wait(1.0)
            raise ended_early(doing, child.kill(), child.zygote.output()) from None
        if isinstance(message, Refused):
            raise RunnerError(f"failed {doing}: {message.line}\n{message.trace}")
        assert isinstance(message, Opened)

    def _next_zygote(self) -> Zygote:
        """The zygote that the next child comes from: the one that is there, its replacement, or a new one."""
        if self._zygote is None or not self._zygote.alive():
            old, self._zygote, self._spare = self._zygote, self._spare or self._launch(), None
            if old is not None:
                old.close()
        return self._zygote

    def _launch(self, *, fork: bool = False) -> Zygote:
        env = os.environ | self._env | ONE_THREAD  # no thread may start before the fork
        return Zygote(self._start, env, self._limits, fork=fork)

    def _prepare_spare(self) -> None:
        """Starts the replacement of a spent zygote, so that its imports overlap with what is still to do."""
        if self._spare is None and not (self._zygote is not None and self._zygote.alive()):
            self._spare = self._launch()

    def _replace(self) -> int:
        """Kills the child and starts its replacement; the dead one's exit code."""
        code = self._drop()
        self._prepare_spare()
        return code

    def _drop(self) -> int:
        child, self._child = self._child, None
        assert child is not None
        try:
            return child.kill()
        finally:
            child.close()


def _noted(verdict: Verdict, more: dict[str, Any]) -> Verdict:
    return msgspec.structs.replace(verdict, evidence=verdict.evidence | more)
