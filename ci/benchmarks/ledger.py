"""Speed and size of the ledger on SQLite and on PostgreSQL, printed and written as JSON with the machine.

    python ci/benchmarks/ledger.py --out ci/results/ledger_host.json

writers  so many processes at once, each writing a session of its own in batches: runs a second, in all, and processor
         seconds of the writers for a million runs (PostgreSQL's own processes are not among them)
nights   a ledger of so many nights, 20,000 cases each: bytes, bytes a run, and for each question of a report the
         seconds by the clock, then those of this process's processor time

The cases are drawn as sessions draw them, for the targets that need no GPU, and not run: features and options are real,
outcomes and times are made up. One case in 200 fails, of 20 signatures. PostgreSQL has its default settings, which wait
for the disk at each commit; SQLite's ledger does not (fuzz/ledger/tables/database.py).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import postgres  # noqa: E402

from fuzz.core.case import Case  # noqa: E402
from fuzz.core.features import features, ordered  # noqa: E402
from fuzz.core.verdict import Signature  # noqa: E402
from fuzz.ledger.ingest.sums import Sums  # noqa: E402
from fuzz.ledger.ingest.write import write  # noqa: E402
from fuzz.ledger.query import read  # noqa: E402
from fuzz.ledger.query.signatures import signatures  # noqa: E402
from fuzz.ledger.tables.database import Ledger  # noqa: E402
from fuzz.ledger.tables.rows import Batch, FindingRow, RunRow, SessionRow  # noqa: E402
from fuzz.session.draw import drawer_of, explore  # noqa: E402
from fuzz.session.plan import plan  # noqa: E402
from fuzz.session.records import Record, machine  # noqa: E402
from fuzz.session.settings import Settings  # noqa: E402
from fuzz.targets.registry import load  # noqa: E402

TARGETS = ("torch.sdpa.math", "blocksparse")
DRAWN = 2000
FAILS = 200  # one case in so many
SIGNATURES = 20
DAY = 86400.0
FORK = multiprocessing.get_context("fork")


def drawn() -> list[Record]:
    """Records of cases as a session draws them."""
    settings = Settings(targets=TARGETS, cases=DRAWN)
    found: list[Record] = []
    rng = random.Random(0)
    for shard in plan(settings):

        def add(case: Case, name: str = shard.name, target: str = shard.target) -> None:
            seconds = {phase: rng.lognormvariate(-5, 1) for phase in ("draw", "inputs", "reference", "run", "judge")}
            seconds["total"] = sum(seconds.values())
            found.append(Record("w", name, target, case.id, "pass", seconds, 0, ordered(features(case)), rng.random()))

        explore(shard, drawer_of(load(shard.target), settings), add)
    return found


class Night:
    """Sessions made of the drawn cases, in another order each."""

    def __init__(self, records: list[Record]) -> None:
        self._records = records
        self._signs = [
            Signature(TARGETS[i % 2], "wrong", "accuracy", ("dq",), features=("softcap",), line=f"kernel.py:{i}")
            for i in range(SIGNATURES)
        ]

    def session(self, number: int, cases: int) -> tuple[SessionRow, list[RunRow], Batch]:
        """A session, its runs, and the batch that ends it."""
        rng, sums = random.Random(number), Sums()
        began = 1.7e9 + number * DAY
        row = SessionRow(
            f"session{number}", began, f"night{number:04d}", began + 3600, archs=dict.fromkeys(TARGETS, "h")
        )
        runs, ran, met = [], [], dict.fromkeys(range(SIGNATURES), 0)
        for place in range(cases):
            record = self._records[rng.randrange(len(self._records))]
            sign = rng.randrange(SIGNATURES) if rng.randrange(FAILS) == 0 else -1
            if sign >= 0:
                met[sign] += 1
                record = msgspec.structs.replace(record, target=self._signs[sign].target, outcome="fail")
            ran.append(record)
            runs.append(
                RunRow(
                    record.target, place, f"{rng.getrandbits(48):012x}", record.outcome, record.ratio,
                    record.seconds["total"], record.features, self._signs[sign].id if sign >= 0 else "",
                )
            )  # fmt: skip
        sums.add(ran)
        findings = tuple(
            FindingRow(self._signs[i], "new", "fail", began, count, 5, 5, True, "dQ is wrong: " + "x" * 150)
            for i, count in met.items()
            if count
        )
        end = Batch(row, findings=findings, tallies=sums.tallies(), timings=sums.timings(), coverage=sums.coverage())
        return row, runs, end


def send(ledger: Ledger, night: tuple[SessionRow, list[RunRow], Batch], batch: int) -> None:
    """Writes a session as one that runs does."""
    row, runs, end = night
    write(ledger, msgspec.structs.replace(end, tallies=(), timings=(), coverage=()))  # signatures are known by then
    for start in range(0, len(runs), batch):
        write(ledger, Batch(row, tuple(runs[start : start + batch])))
    write(ledger, end)


def writer(place: str, night: Any, batch: int, ready: Any, go: Any) -> None:
    """A process that writes a session."""
    with Ledger(place) as ledger:
        ready.release()
        go.wait()
        send(ledger, night, batch)


def writers(place: str, nights: list[Any], batch: int) -> dict[str, Any]:
    """As many processes as there are sessions, which begin at once."""
    Ledger(place).close()
    ready, go = FORK.Semaphore(0), FORK.Event()
    processes = [FORK.Process(target=writer, args=(place, night, batch, ready, go)) for night in nights]
    for process in processes:
        process.start()
    for _ in processes:
        ready.acquire()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    go.set()
    for process in processes:
        process.join()
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    runs = sum(len(night[1]) for night in nights)
    assert all(process.exitcode == 0 for process in processes)
    with Ledger(place) as ledger:
        assert int(read.sessions(ledger)["cases"].sum()) == runs, "a run is missing, or counts twice"
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "writers": len(nights),
        "batch": batch,
        "runs": runs,
        "runs_per_s": round(runs / wall),
        "cpu_s_per_million": round(1e6 * cpu / runs, 1),
    }


def large(place: str, source: Night, nights: int, cases: int, size: Callable[[], int]) -> dict[str, Any]:
    """A ledger of many nights, and what is asked of it."""
    with Ledger(place) as ledger:
        began = time.perf_counter()
        for number in range(nights):
            send(ledger, source.session(number, cases), 2000)
        filling = time.perf_counter() - began
        asked: dict[str, Callable[[], Any]] = {
            name: partial(getattr(read, name), ledger)
            for name in ("sessions", "tallies", "timings", "coverage", "findings", "changes")
        }
        asked["coverage by night"] = lambda: read.coverage(ledger, by_night=True)
        asked["runs of a session"] = lambda: read.runs(ledger, "session0")
        asked["signatures"] = lambda: signatures(ledger)
        seconds = {}
        for name, ask in asked.items():
            began, before = time.perf_counter(), time.process_time()
            ask()
            seconds[name] = [round(time.perf_counter() - began, 2), round(time.process_time() - before, 2)]
    held = size()
    runs = nights * cases
    return {
        "nights": nights,
        "cases": cases,
        "fill_s": round(filling),
        "bytes": held,
        "bytes_per_run": round(held / runs, 1),
        "seconds": seconds,
    }


@contextmanager
def place(database: str, folder: Path) -> Iterator[tuple[str, Callable[[], int]]]:
    """A new place of a ledger, and a function of its size in bytes."""
    if database == "sqlite":
        path = Path(tempfile.mkdtemp(dir=folder)) / "ledger.sqlite"
        yield str(path), lambda: sum(file.stat().st_size for file in path.parent.iterdir())
        return
    import psycopg

    with postgres.server(()) as server:

        def size() -> int:
            with psycopg.connect(server.url) as connection:
                found = connection.execute("SELECT pg_database_size(current_database())").fetchone()
                assert found is not None
                return int(found[0])

        yield server.url, size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=int, default=16)
    parser.add_argument("--runs", type=int, default=4000, help="of each writer")
    parser.add_argument("--batch", type=int, nargs="+", default=[100, 2000], help="runs of a transaction")
    parser.add_argument("--nights", type=int, default=200)
    parser.add_argument("--cases", type=int, default=20_000, help="of a night")
    parser.add_argument("--database", nargs="+", default=["sqlite", "postgresql"], choices=("sqlite", "postgresql"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    source = Night(drawn())
    sessions = [source.session(number, options.runs) for number in range(options.writers)]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    result: dict[str, Any] = {"commit": commit.stdout.strip(), "machine": machine()}
    for database in options.database:
        found: dict[str, Any] = {"writers": []}
        with tempfile.TemporaryDirectory() as folder:
            for batch in options.batch:
                with place(database, Path(folder)) as (where, _):
                    found["writers"].append(writers(where, sessions, batch))
                    print(database, found["writers"][-1], flush=True)
            if options.nights:
                with place(database, Path(folder)) as (where, size):
                    found["nights"] = large(where, source, options.nights, options.cases, size)
                    print(database, found["nights"], flush=True)
        result[database] = found
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
