"""FleetCrew: the workers of a session on a cluster, in place of session.crew.Crew's processes.

One thread of this process does everything: it starts a worker for each free device, gives jobs to those that are idle,
writes down what they tell (work_list.py), and replaces those that are lost.

NOTE [drained]: a device that gives a wrong answer to the health check, or none, gets no case for the rest of the
session, from none of the workers that share it; what a worker has run since its own last right answer is not counted,
and run elsewhere. A failure that costs two devices in a row is counted: then it is the case's doing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

from fuzz.compiling.pool import Pool
from fuzz.corpus.entry import Entry
from fuzz.corpus.store import load_good
from fuzz.fleet.compiling import FleetPool
from fuzz.fleet.kernels import Kernel
from fuzz.fleet.member import Cluster, Member, Options, Slot
from fuzz.fleet.messages import Introduction, News, Order
from fuzz.fleet.progress import FleetCompile
from fuzz.fleet.versions import code, difference
from fuzz.fleet.work_list import WorkList
from fuzz.process.signals import held
from fuzz.session.plan import Shard
from fuzz.session.records import Session, add_machine
from fuzz.session.resume import AlreadyRan, read_session
from fuzz.session.settings import Settings
from fuzz.targets.registry import TargetError

TICK = 0.2  # seconds of a wait for news
STARTS = 3  # attempts to start a worker at one place
GRACE = 10.0  # seconds for the cases at hand after Ctrl-C


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
        self._closed: set[Slot] = set()  # places that get no other worker
        self._starts: Counter[Slot] = Counter()  # that failed
        self._first: Introduction | None = None
        self._why = ""  # the last worker was not fit
        self._kernels: list[object] = []
        self._list: WorkList | None = None
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
        """Compiler, on the cluster, of the kernels for the shards of `todo`, which hands each of them out."""
        assert self._first is not None
        met = read_session(Path(self._settings.folder)).records if self._ran else ()
        self._list = WorkList(self._settings, self._corpus, todo, self._ran, met, self._ends)
        return FleetCompile(
            self._settings, todo, self._list.hand_out, self._make_pool, self._first.builds, self._describe
        )

    def add_machine(self, session: Session, shards: list[Shard]) -> None:
        """Adds what the first worker runs on to session.json."""
        assert self._first is not None
        add_machine(Path(self._settings.folder), session, self._first.archs, self._first.machine)

    def work(self, shards: list[Shard], ran: Callable[[], AlreadyRan]) -> list[str]:
        """Waits until every case of `shards` is on record, or cannot be run, and failures are settled. Returns a line
        for each reason why cases are left undone."""
        assert self._list is not None
        while not self._list.done(self._busy):
            self._step()
            if not self._waits_for_nodes():
                break
        problems = self._list.problems(self._why)
        self.end()
        return problems

    def interrupt(self) -> None:
        """Lets each worker end the case at hand, writes what they tell, and ends them."""
        for member in self._members.values():
            member.handle.stop()
        until = time.monotonic() + GRACE
        while self._list is not None and self._busy and time.monotonic() < until:
            self._take_news()
        self.end()

    def end(self, patience: float | None = None) -> None:
        """Ends the workers at once."""
        for member in self._members.values():
            member.handle.kill()
        self._members.clear()
        if self._list is not None:
            self._list.close()

    def _step(self) -> None:
        self._fill()
        self._take_news()
        self._end_stalled()
        self._assign()

    def _fill(self) -> None:
        """A worker for each free place of the cluster."""
        left = 0.0 if self._ends is None else self._ends - time.monotonic()
        if left < 0:
            return
        taken = {member.slot for member in self._members.values()} | self._closed
        for slot in self._cluster.slots():
            if slot not in taken:
                name = next(self._names)
                order = Order(self._settings, name, slot.shown, tuple(self._corpus), left, self._options.health)
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
        """Takes in the news of a worker."""
        member.heard(news)
        if news.introduction is not None:
            self._meet(member, news.introduction)
        if self._list is not None:
            self._list.take(member.name, news)
            if news.finished or news.looked:
                member.job = None
        if news.state == "unfit" and not member.holds:
            self._drain(member, news)
        elif news.state == "ended" and not member.holds:
            self._members.pop(member.name)

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

    def _assign(self) -> None:
        """A job for each idle worker."""
        for member in self._members.values():
            if self._list is not None and member.idle and (job := self._list.next(member.name)) is not None:
                kernels = self._kernels[member.kernels :]
                member.kernels += len(kernels)
                member.give(job, kernels)

    def _drain(self, member: Member, news: News) -> None:
        """NOTE [drained]."""
        name = member.device or member.slot.shown
        self._why = f"{name}: {news.why}"
        self._drained.add(name)
        again = f"; {news.dropped} of its cases are run elsewhere" if news.dropped else ""
        self.replaced.append(f"{name} was drained: {news.why}{again}")
        if news.suspect is not None and self._list is not None:
            self._list.suspect(news.suspect)
        self._take_back(member, news.why)
        if not member.slot.gpu:
            self._close(member)
            return
        for other in self._members.values():  # whether what they have run counts, their own last check says
            if other is not member and other.fit and other.device == member.device:
                self._take_back(other, news.why)
                other.hold()
        member.hold()  # so that nobody else is given that GPU

    def _lose(self, member: Member, why: str) -> None:
        """A worker that is gone; its place is free, where its node is there."""
        if member.fit:
            self.replaced.append(f"worker {member.name} on {member.slot.shown} was lost: {why}")
        self._take_back(member, why)
        if not member.device:
            self._starts[member.slot] += 1
            if self._starts[member.slot] >= STARTS:
                self._why = f"{member.slot.shown}: {why}"
                self._close(member)
        self._members.pop(member.name, None)

    def _end_stalled(self) -> None:
        """Drains the devices of workers that do not answer, or do not get ahead."""
        for member in list(self._members.values()):
            if not member.holds and (why := member.stalled(self._options)):
                self._drain(member, News("unfit", why=why))
                self._close(member)

    def _close(self, member: Member) -> None:
        """Ends a worker; its place gets no other one."""
        self._closed.add(member.slot)
        member.handle.kill()
        self._members.pop(member.name, None)

    def _take_back(self, member: Member, why: str) -> None:
        job, member.job = member.job, None
        if self._list is not None:
            self._list.take_back(member.name, job, why)

    def _waits_for_nodes(self) -> bool:
        """False once there has been no worker for so long that none is expected."""
        if any(not member.holds for member in self._members.values()):
            self._lonely = None
            return True
        self._lonely = self._lonely or time.monotonic()
        return time.monotonic() - self._lonely < self._options.wait

    @property
    def _busy(self) -> bool:
        return any(member.job is not None for member in self._members.values())

    def _make_pool(self) -> Pool:
        return FleetPool(self._cluster.compilers(), self._send)

    def _send(self, kernel: Kernel) -> None:
        """Called from the thread that compiles."""
        self._kernels.append(self._cluster.share(kernel))

    def _describe(self) -> str:
        fit = [member for member in list(self._members.values()) if member.fit]
        drained = f", {len(self._drained)} drained" if self._drained else ""
        return f"{_count(len(fit), 'worker')} on {_count(len({one.slot.node for one in fit}), 'node')}{drained}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
