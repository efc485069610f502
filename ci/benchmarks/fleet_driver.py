"""Load that one process of a fleet's session can take: cases a second, processor seconds and memory for 10^6 cases.

    python ci/benchmarks/fleet_driver.py --out ci/results/fleet_driver_host.json

FleetCrew as it is, with the progress line's reader, and no ledger, SQLite's or PostgreSQL's beside it. In place of Ray
and of kernels stand --workers workers in this process that tell of a whole shard at once, in the bytes that a real
worker sends; those are made before the clock starts, from cases drawn as a session draws them. So the figures are of
the session's process alone: what it reads, writes down and sends to the ledger. One case in 200 fails, of one cause.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "ci" / "benchmarks")]

from ledger import drawn, place  # noqa: E402
from scripted_cluster import CASE, VERDICT, ScriptedCluster, Worker  # noqa: E402

from fuzz.core.signature import signature  # noqa: E402
from fuzz.fleet.crew import FleetCrew  # noqa: E402
from fuzz.fleet.member import Options, Slot  # noqa: E402
from fuzz.fleet.messages import News, decode, encode  # noqa: E402
from fuzz.ledger.ingest.beside import beside  # noqa: E402
from fuzz.session.pool import run_session  # noqa: E402
from fuzz.session.records import Record, machine  # noqa: E402
from fuzz.session.settings import Settings  # noqa: E402

TARGET = "torch.sdpa.math"
FAILS = 200  # one case in so many


class Teller:
    """Gives the news of a shard as bytes that were made before."""

    def __init__(self, records: list[Record], cases: int) -> None:
        rng = random.Random(0)
        self._news = [_news(records, cases, rng) for _ in range(20)]  # names and places are put in as it is sent
        self.bytes = 0

    def step(self, worker: Worker) -> News | None:
        """One shard at each poll, decoded as messages of Ray's are."""
        if worker.told == 0 or not worker.jobs or worker.jobs[0].shard is None:
            return worker.works()
        worker.told += 1
        shard = worker.jobs.pop(0).shard
        assert shard is not None
        data = self._news[shard.index % len(self._news)].replace(b"SHARD", shard.name.encode())
        self.bytes += len(data)
        return decode(data, News)


def _news(records: list[Record], cases: int, rng: random.Random) -> bytes:
    made = []
    for index in range(cases):
        one = msgspec.structs.replace(rng.choice(records), worker="w0", shard="SHARD", target=TARGET, index=index)
        if rng.randrange(FAILS) == 0:
            one = msgspec.structs.replace(
                one,
                outcome="fail",
                case=CASE,
                verdict=VERDICT,
                signature=signature(CASE, VERDICT),
                status="met",
                at=1.0,
            )
        made.append(one)
    return encode(News("idle", None, tuple(made), finished=("SHARD",), steps=1))


def measure(ledger: str, cases: int, workers: int) -> dict[str, Any]:
    """A session, and what this process spent on it."""
    teller = Teller(drawn(), min(max(cases // 128, 25), 500))
    slots = [Slot(f"node{number // 8}", f"node{number // 8}", number % 8) for number in range(workers)]
    cluster = ScriptedCluster(slots, **{f"w{number}": teller.step for number in range(workers)})
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(targets=(TARGET,), cases=cases, folder=f"{folder}/s", corpus="", minimize_runs=0)
        resident, cpu, began = _resident(), time.process_time(), time.monotonic()
        run_session(
            settings,
            None,
            Console(file=open(os.devnull, "w")),  # noqa: SIM115
            beside=beside(ledger),
            hire=lambda *given: FleetCrew(cluster, Options(), *given),
        )
        wall, cpu = time.monotonic() - began, time.process_time() - cpu
        written = sum(path.stat().st_size for path in Path(f"{folder}/s").glob("records-*.jsonl"))
    return {
        "cases": cases,
        "workers": workers,
        "cases_per_s": round(cases / wall),
        "cpu_s_per_million": round(1e6 * cpu / cases, 1),
        "peak_bytes_per_case": round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - resident) / cases),
        "record_bytes_per_case": round(written / cases),
        "message_bytes_per_case": round(teller.bytes / cases),
    }


def _ledger(name: str, folder: Path) -> Any:
    """The place of a new ledger; 'none': there is none."""
    return nullcontext(("none", int)) if name == "none" else place(name, folder)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=200_000)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--ledger", nargs="+", default=["none", "sqlite", "postgresql"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    result: dict[str, Any] = {"commit": commit.stdout.strip(), "machine": machine(), "driver": {}}
    for name in options.ledger:
        fresh = multiprocessing.get_context("spawn").Pool(1)  # its peak of memory is its own
        with tempfile.TemporaryDirectory() as folder, _ledger(name, Path(folder)) as (where, _), fresh:
            found = fresh.apply(measure, (where, options.cases, options.workers))
        result["driver"][name] = found
        print(name, found, flush=True)
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
