"""fuzz/fleet/crew.py on machines that fail by a script: nothing is lost, nothing is counted twice."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest
from scripted_cluster import ScriptedCluster, Worker, record

from fuzz.fleet.crew import FleetCrew
from fuzz.fleet.member import Options, Slot
from fuzz.fleet.messages import News
from fuzz.fleet.work_list import DEVICES, LOSSES
from fuzz.session.plan import Shard
from fuzz.session.records import Reader, settlement
from fuzz.session.resume import AlreadyRan, Ran, unfinished
from fuzz.session.settings import Settings
from fuzz.targets.registry import TargetError

SHARDS = [Shard("t", i, 10, i, 10 * i) for i in range(6)]
CPUS = [Slot(node, node, 0) for node in ("a", "b")]
GPUS = [Slot(node, node, 0, 1.0) for node in ("a", "b")]


def fleet(
    folder: Path, cluster: ScriptedCluster, ran: AlreadyRan | None = None, ends: float | None = None, **options: float
) -> FleetCrew:
    """A crew that has met its first worker and has all shards to run."""
    how = Options(wait=options.pop("wait", 0.05), **options)  # type: ignore[arg-type]
    crew = FleetCrew(cluster, how, Settings(targets=(), folder=str(folder), corpus=""), ran or {}, ends)
    crew.check_targets()
    todo = unfinished(SHARDS, ran or {})
    crew.compiling(todo)
    assert crew._list is not None
    for shard in todo:
        crew._list.hand_out(shard)
    return crew


def places(folder: Path) -> list[tuple[str, int]]:
    return sorted((one.shard, one.index) for one in Reader(folder).new())


EVERY = sorted((shard.name, index) for shard in SHARDS for index in range(shard.cases))


def test_every_case_is_on_record_once_though_workers_are_lost_in_the_middle_of_a_shard(tmp_path: Path) -> None:
    def dies(worker: Worker) -> News | str | None:
        begun = worker.jobs and worker.jobs[0] is not worker.given[-1]
        return "its node died" if begun else worker.works()

    cluster = ScriptedCluster(CPUS, w0=dies, w2=dies)
    crew = fleet(tmp_path, cluster)
    assert crew.work(SHARDS, dict) == []
    assert places(tmp_path) == EVERY
    assert [line.partition(":")[0] for line in crew.replaced] == [
        "worker w0 on a CPU worker 0 was lost",
        "worker w2 on a CPU worker 0 was lost",
    ]
    rest = [sorted(job.ran) for worker in cluster.workers.values() for job in worker.given if job.ran]
    assert rest and all(places == [0, 1, 2, 3, 4] for places in rest), "what is left of their shards, not all of it"


def test_a_case_that_two_workers_tell_of_is_counted_once(tmp_path: Path) -> None:
    def repeats(worker: Worker) -> News | str | None:
        """Tells of the first shard's cases too, which the other one runs."""
        news = worker.works()
        if not isinstance(news, News) or not news.records:
            return news
        more = tuple(record(worker.name, SHARDS[0], index) for index in range(10))
        return msgspec.structs.replace(news, records=(*more, *news.records))

    crew = fleet(tmp_path, ScriptedCluster(CPUS, w1=repeats))
    assert crew.work(SHARDS, dict) == []
    assert places(tmp_path) == EVERY


def test_a_device_with_a_wrong_answer_is_drained_and_its_cases_run_elsewhere(tmp_path: Path) -> None:
    def lies(worker: Worker) -> News | None:
        if worker.told < 4:
            return worker.works()
        return News("unfit", why="a wrong answer", dropped=7)

    cluster = ScriptedCluster(GPUS, w0=lies)
    crew = fleet(tmp_path, cluster)
    assert crew.work(SHARDS, dict) == []
    assert places(tmp_path) == EVERY
    assert {one.worker for one in Reader(tmp_path).new()} == {"w0", "w1"}, "what was right before stays"
    assert crew.replaced == ["a GPU 0 was drained: a wrong answer; 7 of its cases are run elsewhere"]
    assert set(cluster.workers) == {"w0", "w1"}, "its worker keeps the GPU, so that no other one gets it"


def test_all_workers_of_a_device_that_is_drained_stop(tmp_path: Path) -> None:
    def lies(worker: Worker) -> News | None:
        return worker.works() if worker.told < 4 else News("unfit", why="a wrong answer", dropped=1)

    slots = [Slot("a", "a", number, 0.5) for number in range(4)]
    cluster = ScriptedCluster(slots, w0=lies)
    crew = fleet(tmp_path, cluster)
    assert crew.work(SHARDS, dict) == []
    assert places(tmp_path) == EVERY
    assert [worker.stopped for worker in cluster.workers.values()] == [True, True, False, False]
    assert len(cluster.workers) == 4 and len(crew.replaced) == 1


def test_a_failure_that_costs_two_devices_counts(tmp_path: Path) -> None:
    def hangs(worker: Worker) -> News | None:
        """Its GPU does not come back from the fourth case of the first shard."""
        shard = worker.jobs[0].shard if worker.jobs else None
        if worker.told and shard == SHARDS[0] and 3 not in worker.jobs[0].ran:
            return News("unfit", why="no answer", suspect=record(worker.name, shard, 3, fails=True), dropped=1)
        return worker.works()

    slots = [Slot("a", "a", number, 1.0) for number in range(4)]
    cluster = ScriptedCluster(slots, **dict.fromkeys(("w0", "w1", "w2", "w3"), hangs))
    crew = fleet(tmp_path, cluster)
    assert crew.work(SHARDS, dict) == []
    assert places(tmp_path) == EVERY
    assert len(crew.replaced) == DEVICES
    assert [one.status for one in settlement(tmp_path).new] == ["new"]


def test_a_shard_that_costs_one_worker_after_another_is_given_up_and_named(tmp_path: Path) -> None:
    def dies(worker: Worker) -> News | str | None:
        return "killed" if any(job.shard == SHARDS[1] for job in worker.jobs) else worker.works()

    names = [f"w{number}" for number in range(10)]
    crew = fleet(tmp_path, ScriptedCluster(CPUS, **dict.fromkeys(names, dies)))
    (line,) = crew.work(SHARDS, dict)
    assert line == f"10 cases of t-1 were not run: {LOSSES} workers were lost over it, the last one: killed"
    assert places(tmp_path) == [place for place in EVERY if place[0] != "t-1"]


def test_a_node_that_joins_gets_a_worker(tmp_path: Path) -> None:
    cluster = ScriptedCluster(CPUS[:1])

    def joins() -> None:
        if cluster.polls == 3:
            cluster.places.append(CPUS[1])

    cluster.after = joins
    assert fleet(tmp_path, cluster).work(SHARDS, dict) == []
    assert places(tmp_path) == EVERY
    assert {one.worker for one in Reader(tmp_path).new()} == {"w0", "w1"}


def test_a_worker_with_other_code_gets_no_case(tmp_path: Path) -> None:
    def other(worker: Worker) -> News | None:
        news = worker.works()
        if news is not None and news.introduction is not None:
            code = {**news.introduction.code, "hypothesis": "0.1"}
            return msgspec.structs.replace(news, introduction=msgspec.structs.replace(news.introduction, code=code))
        return news

    cluster = ScriptedCluster(CPUS, w0=other)
    crew = fleet(tmp_path, cluster)
    assert crew.work(SHARDS, dict) == []
    assert not cluster.workers["w0"].given and cluster.workers["w0"].killed
    assert "hypothesis is 0.1, here it is" in crew.replaced[0]
    with pytest.raises(TargetError, match=r"no worker: a CPU 0: hypothesis is 0\.1"):
        fleet(tmp_path / "two", ScriptedCluster(CPUS[:1], w0=other))


def test_without_a_worker_the_session_ends_and_says_what_is_missing(tmp_path: Path) -> None:
    def dies(worker: Worker) -> News | str | None:
        return "its node died" if worker.told == 3 else worker.works()

    cluster = ScriptedCluster(CPUS[:1], w0=dies)
    cluster.after = lambda: cluster.places.clear() if cluster.polls == 3 else None
    crew = fleet(tmp_path, cluster)
    (line,) = crew.work(SHARDS, dict)
    assert line == f"{len(EVERY) - len(places(tmp_path))} cases were not run: no worker is left"
    assert places(tmp_path)


def test_cases_on_record_are_not_run_again(tmp_path: Path) -> None:
    ran: AlreadyRan = {
        "t-0": {index: Ran("", True, 0.0) for index in range(10)},
        "t-1": {index: Ran("", True, 0.0) for index in range(4)},
    }
    (tmp_path / "session.json").write_text('{"settings": {}, "machine": {}}')
    cluster = ScriptedCluster(CPUS)
    crew = fleet(tmp_path, cluster, ran)
    assert crew.work(SHARDS, dict) == []
    assert places(tmp_path) == [place for place in EVERY if place[1] not in ran.get(place[0], {})]


def test_each_cause_is_looked_into_once_and_by_another_worker_where_one_is_lost(tmp_path: Path) -> None:
    def fails(worker: Worker) -> News | str | None:
        if worker.jobs and worker.jobs[0].failure is not None and worker.name == "w0":
            return "killed"
        news = worker.works()
        if not isinstance(news, News):
            return news
        bad = (record(worker.name, SHARDS[one.shard == "t-1"], one.index, fails=True) for one in news.records)
        wrong = tuple(new if new.shard == old.shard else old for new, old in zip(bad, news.records, strict=True))
        return msgspec.structs.replace(news, records=wrong)

    cluster = ScriptedCluster(CPUS, w0=fails, w1=fails)
    crew = fleet(tmp_path, cluster)
    assert crew.work(SHARDS, dict) == []
    assert places(tmp_path) == EVERY
    (one,) = settlement(tmp_path).new
    assert one.status == "new" and Path(one.finding).is_file()
    jobs = [job for worker in cluster.workers.values() for job in worker.given if job.failure is not None]
    assert 1 <= len(jobs) <= 2


def test_a_worker_that_gives_no_verdict_is_given_up(tmp_path: Path) -> None:
    def stands_still(worker: Worker) -> News | None:
        return worker.works() if worker.told < 2 else News("working", steps=2)

    cluster = ScriptedCluster(GPUS, w0=stands_still)
    cluster.after = lambda: time.sleep(0.01)
    crew = fleet(tmp_path, cluster, stall=0.1)
    assert crew.work(SHARDS, dict) == []
    assert places(tmp_path) == EVERY
    assert cluster.workers["w0"].killed and "a GPU 0 was drained: no verdict for 0 s" in crew.replaced[0]


def test_nothing_is_begun_once_the_time_is_up(tmp_path: Path) -> None:
    cluster = ScriptedCluster(CPUS)
    crew = fleet(tmp_path, cluster, ends=time.monotonic() + 0.02)
    time.sleep(0.03)
    assert crew.work(SHARDS, dict) == []
    assert not any(worker.given for worker in cluster.workers.values())


def test_what_workers_have_run_when_the_session_is_interrupted_is_on_record(tmp_path: Path) -> None:
    cluster = ScriptedCluster(CPUS)

    def interrupts() -> None:
        if cluster.polls == 3:
            raise KeyboardInterrupt

    def ends(worker: Worker) -> News | None:
        """As a worker does that ends the case at hand first."""
        if worker.stopped and worker.jobs:
            job = worker.jobs.pop()
            assert job.shard is not None
            return News("ended", records=(record(worker.name, job.shard, worker.left(job)[0]),), steps=99)
        return worker.works()

    cluster.script = {"w0": ends, "w1": ends}
    cluster.after = interrupts
    crew = fleet(tmp_path, cluster)
    with pytest.raises(KeyboardInterrupt):
        crew.work(SHARDS, dict)
    there = places(tmp_path)
    crew.interrupt()
    more = places(tmp_path)
    assert len(more) == len(there) + 2 and len(set(more)) == len(more)
    assert all(worker.killed for worker in cluster.workers.values()) or not crew._members
