"""FleetCrew: the workers of a session on a cluster, in place of session.crew.Crew's processes.

One thread of this process does everything: it starts a worker for each free device, gives shards to those that are
idle, writes what they tell into the session's folder, and replaces those that are lost. A shard whose worker is lost is
given to another one, which draws all of its cases again and runs those that are not on record.

NOTE [drained]: a device that gives a wrong answer to the health check, or none, gets no case for the rest of the
session, from none of the workers that share it; what a worker has run since its own last right answer is not counted,
and run elsewhere. A failure that costs two devices in a row is counted: then it is the case's doing.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

from fuzz.compiling.pool import Pool
from fuzz.corpus.entry import Entry
from fuzz.corpus.store import load_good
from fuzz.fleet.cases import Cases
from fuzz.fleet.compiling import FleetPool
from fuzz.fleet.kernels import Kernel
from fuzz.fleet.member import Cluster, Member, Options, Slot
from fuzz.fleet.messages import Introduction, Job, News, Order
from fuzz.fleet.progress import FleetCompile
from fuzz.fleet.settling import Settling
from fuzz.fleet.versions import code, difference
from fuzz.process.signals import held
from fuzz.session.plan import Shard
from fuzz.session.records import Session, add_machine
from fuzz.session.resume import AlreadyRan, read_session
from fuzz.session.settings import Settings
from fuzz.targets.registry import TargetError

TICK = 0.2  # seconds of a wait for news
LOSSES = 3  # workers in a row that may be lost over one shard without a case on record
DEVICES = 2  # devices in a row that a failure may cost before it counts
GRACE = 10.0  # seconds for the cases at hand after Ctrl-C
SETTLING = 4.0  # seconds after the session's time in which a failure that is being looked into may end


class FleetCrew:
    """The workers of one session. ends: of the session, by time.monotonic(); None: when every case was run."""

    def __init__(
        self, cluster: Cluster, options: Options, settings: Settings, ran: AlreadyRan, ends: float | None
    ) -> None:
        self.replaced: list[str] = []
        self._cluster, self._options, self._settings, self._ran, self._ends = cluster, options, settings, ran, ends
        self._corpus: Sequence[Entry] = load_good(settings.corpus)[0] if settings.corpus else []
        self._code = code(settings.files)
        self._names = (f"w{number}" for number in count())
        self._members: dict[str, Member] = {}
        self._drained: set[str] = set()  # names of devices
        self._closed: set[Slot] = set()  # slots without a GPU whose worker was not fit
        self._first: Introduction | None = None
        self._not_started: Counter[Slot] = Counter()
        self._why = ""  # the last worker was not fit
        self._lock = threading.Lock()
        self._shards: deque[Shard] = deque()
        self._to_come = 0  # shards that are not handed out yet
        self._kernels: list[object] = []
        self._losses: Counter[str] = Counter()  # by shard
        self._given_up: dict[str, str] = {}  # by shard: why
        self._not_judged: set[str] = set()  # shards with cases on which the harness failed
        self._suspects: Counter[tuple[str, int]] = Counter()
        self._cases: Cases | None = None
        self._settling: Settling | None = None
        self._lonely: float | None = None  # since when there is no worker
        self._fill()

    def check_targets(self) -> None:
        """Waits for the first worker that is fit. Raises TargetError where a target cannot be run, and where no worker
        is fit."""
        while self._first is None:
            self._step()
            alone = all(member.holds for member in self._members.values())
            if alone and (self._why or not self._waits_for_nodes()):
                raise TargetError(f"no worker: {self._why or 'the cluster has no free device'}")
        for name, why in self._first.missing.items():
            raise TargetError(f"{name} cannot run on the cluster: {why}")

    def compiling(self, todo: list[Shard]) -> FleetCompile:
        """What compiles on the cluster for the shards of `todo`, and hands each of them out."""
        assert self._first is not None
        self._to_come = len(todo)
        return FleetCompile(self._settings, todo, self._hand_out, self._make_pool, self._first.builds, self._describe)

    def add_machine(self, session: Session, shards: list[Shard]) -> None:
        """Adds what the first worker runs on to session.json."""
        assert self._first is not None
        add_machine(Path(self._settings.folder), session, self._first.archs, self._first.machine)

    def work(self, shards: list[Shard], ran: Callable[[], AlreadyRan]) -> list[str]:
        """Waits until every case of `shards` is on record, or cannot be run, and failures are settled. Returns a line
        for each reason why cases are left undone."""
        self._cases = Cases(Path(self._settings.folder), self._settings.device, shards, self._ran)
        self._settling = Settling(self._settings, self._corpus)
        if self._ran:
            self._settling.add(read_session(Path(self._settings.folder)).records)
        while not self._done():
            self._step()
            if not self._waits_for_nodes():
                break
        problems = self._problems()
        self.end()
        return problems

    def interrupt(self) -> None:
        """Lets each worker end the case at hand, writes what they tell, and ends them."""
        for member in self._members.values():
            member.handle.stop()
        until = time.monotonic() + GRACE
        while self._cases is not None and self._busy and time.monotonic() < until:
            self._take_news()
        self.end()

    def end(self, patience: float | None = None) -> None:
        """Ends the workers at once."""
        for member in self._members.values():
            member.handle.kill()
        self._members.clear()
        if self._cases is not None:
            self._cases.close()

    # Devices and their workers

    def _step(self) -> None:
        self._fill()
        self._take_news()
        self._end_stalled()
        self._assign()

    def _fill(self) -> None:
        """A worker for each free slot of the cluster."""
        taken = {member.slot for member in self._members.values()} | self._closed
        if self._late():
            return
        left = 0.0 if self._ends is None else self._ends - time.monotonic()
        for slot in self._cluster.slots():
            if slot not in taken:
                name = next(self._names)
                order = Order(
                    self._settings, name, f"{slot.host} {slot.number}", tuple(self._corpus), left, self._options.health
                )
                self._members[name] = Member(name, slot, self._cluster.start(slot, name, order))

    def _take_news(self) -> None:
        with held():  # what has come is written before Ctrl-C is raised
            for name, news in self._cluster.poll(TICK):
                member = self._members.get(name)
                if member is None:
                    continue
                if isinstance(news, News):
                    self._take(member, news)
                else:
                    self._lose(member, news)

    def _take(self, member: Member, news: News) -> None:
        """What a worker tells."""
        member.heard(news)
        if news.introduction is not None:
            self._meet(member, news.introduction)
        if self._cases is not None and self._settling is not None:
            new = self._cases.add(news.records)
            self._settling.add(new)
            for record in new:
                self._losses.pop(record.shard, None)
            for fault in news.faults:
                self._cases.fault(fault)
            for looked in news.looked:
                self._settling.done(member.name, looked)
                member.job = None
            for shard in news.finished:
                self._finish(member, shard)
        if news.state == "unfit" and not member.holds:
            self._drain(member, news)
        elif news.state == "ended" and not member.holds:
            self._forget(member)

    def _meet(self, member: Member, found: Introduction) -> None:
        """A worker that is fit, unless its code is another one's, or its device is drained."""
        member.device = found.device
        other = difference(self._code, found.code)
        missing = "; ".join(f"{name} cannot run there: {why}" for name, why in found.missing.items())
        if found.device in self._drained:
            member.hold()
        elif other or (missing and self._first is not None):
            self._drain(member, News("unfit", why=other or missing))
        else:
            self._first = self._first or found

    def _drain(self, member: Member, news: News) -> None:
        """NOTE [drained]."""
        self._why = f"{member.device or member.slot.shown}: {news.why}"
        self._drained.add(member.device or member.slot.shown)
        again = f"; {news.dropped} of its cases are run elsewhere" if news.dropped else ""
        self.replaced.append(f"{member.device or member.slot.shown} was drained: {news.why}{again}")
        if news.suspect is not None and self._cases is not None and self._settling is not None:
            place = news.suspect.shard, news.suspect.index
            self._suspects[place] += 1
            if self._suspects[place] >= DEVICES:
                self._settling.add(self._cases.add([news.suspect]))
        self._take_back(member, news.why)
        if member.slot.gpu:
            for other in self._members.values():  # whether what they have run counts, their own last check says
                if other is not member and other.fit and other.device == member.device:
                    self._take_back(other, news.why)
                    other.hold()
            member.hold()  # so that nobody else is given that GPU
        else:
            self._closed.add(member.slot)
            member.handle.kill()
            self._forget(member)

    def _lose(self, member: Member, why: str) -> None:
        """A worker that is gone; its slot is free, where its node is there."""
        if member.fit:
            self.replaced.append(f"worker {member.name} on {member.slot.shown} was lost: {why}")
        if not member.device:
            self._not_started[member.slot] += 1
            if self._not_started[member.slot] >= LOSSES:
                self._closed.add(member.slot)
                self._why = f"{member.slot.shown}: {why}"
        self._take_back(member, why)
        self._forget(member)

    def _forget(self, member: Member) -> None:
        self._members.pop(member.name, None)

    def _end_stalled(self) -> None:
        """Drains workers that do not answer, or do not get ahead."""
        for member in list(self._members.values()):
            why = member.stalled(self._options)
            if why and not member.holds:
                member.handle.kill()
                self._drain(member, News("unfit", why=why))
                self._closed.add(member.slot)
                self._forget(member)

    def _waits_for_nodes(self) -> bool:
        """False once there has been no worker for so long that none is expected."""
        if any(not member.holds for member in self._members.values()):
            self._lonely = None
            return True
        self._lonely = self._lonely or time.monotonic()
        return time.monotonic() - self._lonely < self._options.wait

    # Shards and failures

    def _hand_out(self, shard: Shard) -> None:
        """Called from any thread."""
        with self._lock:
            self._shards.append(shard)
            self._to_come -= 1

    def _assign(self) -> None:
        """A shard for each idle worker, or a failure to look into where there is no shard left."""
        for member in self._members.values():
            if member.idle and self._cases is not None:
                job = self._next_job(member)
                if job is not None:
                    kernels = self._kernels[member.kernels :]
                    member.kernels += len(kernels)
                    member.give(job, kernels)

    def _next_job(self, member: Member) -> Job | None:
        assert self._cases is not None and self._settling is not None
        if not self._late():
            with self._lock:
                shard = self._shards.popleft() if self._shards else None
            if shard is not None:
                return Job(shard, self._cases.ran(shard.name))
        if self._to_come or self._late():
            return None
        failure = self._settling.next(member.name)
        return None if failure is None else Job(failure=failure)

    def _finish(self, member: Member, name: str) -> None:
        """A worker has come to the end of a shard, whose cases are on record, but for those that were not judged."""
        assert self._cases is not None
        shard = member.job.shard if member.job is not None else None
        member.job = None
        if not self._cases.complete(name) and shard is not None:
            self._not_judged.add(name)

    def _take_back(self, member: Member, why: str) -> None:
        """What a worker had in hand is given to another one."""
        job, member.job = member.job, None
        if self._settling is not None:
            self._settling.lose(member.name)
        if job is not None and job.shard is not None:
            self._again(job.shard, why)

    def _again(self, shard: Shard, why: str) -> None:
        assert self._cases is not None
        if self._cases.complete(shard.name):
            return
        self._losses[shard.name] += 1
        if self._losses[shard.name] >= LOSSES:
            self._given_up[shard.name] = why
            return
        with self._lock:
            self._shards.appendleft(shard)

    def _done(self) -> bool:
        assert self._cases is not None and self._settling is not None
        if self._over(SETTLING):
            return True
        if self._busy or ((self._shards or self._to_come) and not self._late()):
            return False
        return self._late() or not self._settling.left

    @property
    def _busy(self) -> bool:
        return any(member.job is not None for member in self._members.values())

    def _late(self) -> bool:
        return self._over(0.0)

    def _over(self, grace: float) -> bool:
        return self._ends is not None and time.monotonic() > self._ends + grace

    def _problems(self) -> list[str]:
        assert self._cases is not None
        if self._late():
            return []
        missing = self._cases.missing()
        lines = [
            f"{missing[name]} cases of {name} were not run: {LOSSES} workers were lost over it, the last one: {why}"
            for name, why in self._given_up.items()
            if name in missing
        ]
        said = {*self._given_up, *self._not_judged}  # what the harness failed on has lines of its own
        rest = sum(number for name, number in missing.items() if name not in said)
        if rest:
            lines.append(f"{rest} cases were not run: no worker is left{f': {self._why}' if self._why else ''}")
        return lines

    # What this process says, and what it compiles

    def _make_pool(self) -> Pool:
        return FleetPool(self._cluster.compilers(), self._send)

    def _send(self, kernel: Kernel) -> None:
        """Called from the thread that compiles."""
        self._kernels.append(self._cluster.share(kernel))

    def _describe(self) -> str:
        fit = [member for member in list(self._members.values()) if member.fit]
        hosts = len({member.slot.node for member in fit})
        drained = f", {len(self._drained)} drained" if self._drained else ""
        return f"{_count(len(fit), 'worker')} on {_count(hosts, 'node')}{drained}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
