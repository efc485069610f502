"""A worker of a fleet on its node: session.Worker in a thread of its own, asked and told by messages.

It imports no Ray: cluster.py makes an actor of it. Its methods are quick, but for `news`, which waits.
"""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Iterable
from contextlib import suppress

from fuzz.compiling.build_key import Compiled
from fuzz.compiling.cache import Cache, CacheError
from fuzz.core.target import Target
from fuzz.fleet.health import Health, Unfit
from fuzz.fleet.kernels import Kernel, install
from fuzz.fleet.messages import Introduction, Job, News, Order, State, decode, encode
from fuzz.fleet.outbox import Outbox
from fuzz.fleet.versions import code
from fuzz.runner import RunnerError
from fuzz.session.failures.look_into import Looked
from fuzz.session.plan import archs
from fuzz.session.records import Record, machine
from fuzz.session.settings import Settings
from fuzz.session.worker import Worker
from fuzz.targets.registry import TargetError, load


class FleetWorker:
    """Begins at once: opens its device, checks it, introduces itself, then does what it is given, in order.

    order   an encoded messages.Order
    device  name of its device; '': the order's
    """

    def __init__(self, order: bytes, device: str = "") -> None:
        self._order = decode(order, Order)
        self._device = device or self._order.device
        self._outbox = Outbox()
        self._change = threading.Condition()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._state: State = "starting"
        self._told: State = "starting"
        self._introduction: Introduction | None = None
        self._looked: list[Looked] = []
        self._finished: list[str] = []
        self._why, self._dropped, self._steps = "", 0, 0
        self._suspect: Record | None = None
        self._worker: Worker | None = None
        self._thread = threading.Thread(target=self._live, name="worker", daemon=True)
        self._thread.start()

    def give(self, job: bytes, *kernels: Kernel) -> None:
        """Puts a job (messages.Job) at the end of its list; kernels: into the cache of compiled kernels before."""
        with suppress(OSError, CacheError):  # a full disk, which the worker meets too
            for kernel in kernels:
                install(Cache(), kernel)
        self._jobs.put(decode(job, Job))

    def stop(self) -> None:
        """Ends it after the case at hand."""
        if self._worker is not None:
            self._worker.stop()
        self._jobs.put(None)

    def news(self, seconds: float) -> bytes:
        """What there is to tell (messages.News); waits until there is something, `seconds` at most."""
        with self._change:
            self._change.wait_for(self._something, seconds)
            records, faults = self._outbox.take()
            introduction, self._introduction = self._introduction, None
            looked, self._looked = tuple(self._looked), []
            finished, self._finished = tuple(self._finished), []
            suspect, self._suspect = self._suspect, None
            self._told = self._state
            told = News(
                self._state,
                introduction,
                records,
                faults,
                looked,
                finished,
                self._why,
                suspect,
                self._dropped,
                self._steps + self._outbox.added,
            )
        return encode(told)

    def _something(self) -> bool:
        return self._state != self._told or bool(self._introduction or self._looked or self._finished)

    def _tell(self, state: State) -> None:
        with self._change:
            self._state = state
            self._steps += 1
            self._change.notify_all()

    def _live(self) -> None:
        """The thread: from the opening of the device to the end."""
        order = self._order
        health = Health(order.health, self._outbox, order.settings.device)
        ends = time.monotonic() + order.seconds if order.seconds else None
        try:
            with Worker(
                order.settings, order.name, ends=ends, book=self._outbox, corpus=order.corpus, check=health
            ) as worker:
                self._worker = worker
                introduction = introduce(order.settings, self._device)
                if not introduction.missing:
                    worker.open()
                    health.look(worker.run_case)
                with self._change:
                    self._introduction = introduction
                self._tell("idle")
                while (job := self._jobs.get()) is not None:
                    self._tell("working")
                    self._do(job, worker, health)
                    self._tell("idle" if self._jobs.empty() else "working")
                health.look(worker.run_case)
            self._tell("ended")
        except (Unfit, RunnerError, TargetError, OSError) as error:
            self._give_up(str(error).strip().splitlines()[0])
        except Exception:
            self._give_up(f"a fault of the harness: {traceback.format_exc()}")

    def _do(self, job: Job, worker: Worker, health: Health) -> None:
        if job.failure is not None:
            looked = worker.look_into(job.failure)
            health.look(worker.run_case)
            with self._change:
                self._looked.append(looked)
        if job.shard is not None:
            worker.run_shard(job.shard, job.ran)
            health.look(worker.run_case)
            with self._change:
                self._finished.append(job.shard.name)

    def _give_up(self, why: str) -> None:
        with self._change:
            self._dropped, self._suspect = self._outbox.drop()
            self._why = why
        self._tell("unfit")


def introduce(settings: Settings, device: str) -> Introduction:
    """What a worker says of itself. Raises TargetError for a target that is unknown."""
    targets = {name: load(name, settings.files, settings.device) for name in settings.targets}
    return Introduction(
        device=device,
        code=code(settings.files),
        missing={name: why for name, target in targets.items() if (why := target.missing()) is not None},
        archs=archs(targets, settings),
        builds=dict(_builds(targets.values())),
        machine=machine(),
    )


def _builds(targets: Iterable[Target]) -> Iterable[tuple[str, str]]:
    for target in targets:
        if isinstance(target, Compiled):
            yield target.name, target.arch()
