"""A cluster without Ray and without kernels, for tests of FleetCrew: with each poll a worker takes a step.

A worker introduces itself, then runs half of a shard's cases with each step. What else happens to it, its script says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from fuzz.core.case import Case
from fuzz.core.signature import cause, signature
from fuzz.core.verdict import Finding, Verdict
from fuzz.corpus.entry import Entry
from fuzz.fleet.kernels import Kernel
from fuzz.fleet.member import Slot
from fuzz.fleet.messages import Introduction, Job, News, Order
from fuzz.fleet.versions import code
from fuzz.session.failures.look_into import Looked
from fuzz.session.plan import Shard
from fuzz.session.records import Record, Settled
from oracles.problem import Problem

CASE = Case("t", Problem((24,), (24,), 2, 1, 16, 16, "float32"))
VERDICT = Verdict(CASE.id, "fail", (Finding("accuracy", "wrong", "O is wrong", "O"),))


def record(worker: str, shard: Shard, index: int, *, fails: bool = False) -> Record:
    """The record of a case that passed, or failed."""
    made = Record(worker, shard.name, shard.target, f"{shard.index:06x}{index:06x}", "pass", {"total": 0.001}, index)
    if not fails:
        return made
    return msgspec.structs.replace(
        made,
        outcome="fail",
        case=CASE,
        verdict=VERDICT,
        signature=signature(CASE, VERDICT),
        status="met",
        message="O is wrong",
        at=1.0,
    )


def looked_into(failure: Record, worker: str) -> Looked:
    """What a worker says of a failure: that it shows again."""
    assert failure.signature is not None and failure.case is not None
    entry = Entry.as_met(failure.case, "fail", failure.signature, device="host")
    raw = failure.signature
    return Looked(Settled(worker, failure.shard, failure.case_id, "new", raw, cause(raw), message="O"), entry)


@dataclass
class Worker:
    """One of a ScriptedCluster's; also its Handle. `given` are the jobs that it was given."""

    name: str
    slot: Slot
    order: Order
    step: Callable[[Worker], News | str | None]
    given: list[Job] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    told: int = 0
    stopped: bool = False
    killed: bool = False

    def give(self, job: Job, kernels: Sequence[object]) -> None:
        self.given.append(job)
        self.jobs.append(job)

    def stop(self) -> None:
        self.stopped = True

    def kill(self) -> None:
        self.killed = True

    @property
    def introduction(self) -> Introduction:
        """Two workers share a GPU where each has half of it."""
        number = int(self.slot.number * self.slot.gpu) if self.slot.gpu else self.slot.number
        device = f"{self.slot.host} {'GPU' if self.slot.gpu else 'CPU'} {number}"
        return Introduction(device, code(()))

    def works(self) -> News | None:
        """What a worker does that is fit."""
        self.told += 1
        if self.told == 1:
            return News("idle", self.introduction, steps=1)
        if self.stopped:
            return News("ended", steps=self.told)
        if not self.jobs:
            return None
        job = self.jobs[0]
        if job.failure is not None:
            self.jobs.pop(0)
            return News("idle", looked=(looked_into(job.failure, self.name),), steps=self.told)
        assert job.shard is not None
        left = self.left(job)
        some = left[: job.shard.cases // 2]
        job = msgspec.structs.replace(job, ran={**job.ran, **dict.fromkeys(some)})  # type: ignore[dict-item]
        done = len(some) == len(left)
        self.jobs[0] = job
        if done:
            self.jobs.pop(0)
        assert job.shard is not None
        records = tuple(record(self.name, job.shard, index) for index in some)
        return News("idle" if done else "working", None, records, finished=(job.shard.name,) * done, steps=self.told)

    def left(self, job: Job) -> list[int]:
        """Places of the cases of a job's shard that are to be run."""
        assert job.shard is not None
        return [index for index in range(job.shard.cases) if index not in job.ran]


class ScriptedCluster:
    """Machines. script: by the name of a worker what it does at each poll: news, why it is gone, or nothing; others
    work. after: called after each poll, as where a node is added."""

    def __init__(self, slots: Sequence[Slot], **script: Callable[[Worker], News | str | None]) -> None:
        self.places = list(slots)
        self.script = script
        self.workers: dict[str, Worker] = {}
        self.after: Callable[[], None] = lambda: None
        self.polls = 0

    def slots(self) -> list[Slot]:
        return self.places

    def start(self, slot: Slot, name: str, order: Order) -> Worker:
        worker = Worker(name, slot, order, self.script.get(name, Worker.works))
        self.workers[name] = worker
        return worker

    def poll(self, seconds: float) -> list[tuple[str, News | str]]:
        self.polls += 1
        assert self.polls < 10_000, "the fleet does not come to an end"
        told: list[tuple[str, News | str]] = []
        for worker in list(self.workers.values()):
            if not worker.killed and (news := worker.step(worker)) is not None:
                told.append((worker.name, news))
                worker.killed = worker.killed or isinstance(news, str)
        self.after()
        if not told:
            time.sleep(1e-4)  # as a real poll: 10,000 of them are to take longer than the crew waits for a machine
        return told

    def share(self, kernel: Kernel) -> object:
        return kernel

    def compilers(self):
        raise AssertionError("nothing is compiled")
