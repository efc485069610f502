"""How the ledger grows with the cases in it, on SQLite and on PostgreSQL: bytes, speed of writing, time of questions.

    python ci/benchmarks/ledger_growth.py --sessions 5 10 20 40 --cases 100000 --out ci/results/ledger_growth_host.json

Sessions of --cases cases are written one after another, in batches of 2,000; at each number of sessions in --sessions
the ledger is looked at. Rows are those of ledger.py: cases drawn as sessions draw them, outcomes and times made up.

cpu_s_per_million  processor seconds of writing a million cases, those since the look before: this process's, and on
                   PostgreSQL those of its server beside them
rows               rows of each table
seconds            of a report's questions, by the clock

kernels: how many kernels a session of `blocksparse` needs, by its cases: from the cases alone, nothing is compiled.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import func, select

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "ci" / "benchmarks")]

from ledger import Night, drawn, place, send  # noqa: E402

from fuzz.ledger.query import read  # noqa: E402
from fuzz.ledger.query.signatures import signatures  # noqa: E402
from fuzz.ledger.tables import schema  # noqa: E402
from fuzz.ledger.tables.database import Ledger  # noqa: E402
from fuzz.session.plan import plan  # noqa: E402
from fuzz.session.precompile.build_plan import builds_of  # noqa: E402
from fuzz.session.records import machine  # noqa: E402
from fuzz.session.settings import Settings  # noqa: E402

BATCH = 2000
TABLES = ("session", "run", "coverage", "timing", "tally", "finding", "signature", "feature")


def grow(where: str, source: Night, looks: list[int], cases: int, size: Callable[[], int]) -> list[dict[str, Any]]:
    """Writes sessions, and looks at the ledger when there are so many."""
    found, before = [], 0
    with Ledger(where) as ledger:
        for look in looks:
            own = server = wall = 0.0
            for number in range(before, look):
                night = source.session(number, cases)
                cpu, theirs, began = time.process_time(), _postgres_cpu(where), time.perf_counter()
                send(ledger, night, BATCH)
                own += time.process_time() - cpu
                server += _postgres_cpu(where) - theirs
                wall += time.perf_counter() - began
            written = (look - before) * cases
            found.append(
                {
                    "sessions": look,
                    "runs": look * cases,
                    "bytes": size(),
                    "runs_per_s": round(written / wall),
                    "cpu_s_per_million": [round(1e6 * part / written, 1) for part in (own, server)],
                    "rows": _rows(ledger),
                    "seconds": _asked(ledger),
                }
            )
            before = look
            print(found[-1], flush=True)
    return found


def _rows(ledger: Ledger) -> dict[str, int]:
    with ledger.read() as connection:
        return {
            name: int(connection.scalar(select(func.count()).select_from(getattr(schema, name))) or 0)
            for name in TABLES
        }


def _asked(ledger: Ledger) -> dict[str, float]:
    """Seconds of each question."""
    questions: dict[str, Callable[[], Any]] = {
        "sessions": lambda: read.sessions(ledger),
        "tallies": lambda: read.tallies(ledger),
        "coverage": lambda: read.coverage(ledger),
        "coverage by night": lambda: read.coverage(ledger, by_night=True),
        "signatures": lambda: signatures(ledger),
        "runs of a session": lambda: read.runs(ledger, "session0"),
    }
    seconds = {}
    for name, ask in questions.items():
        began = time.perf_counter()
        ask()
        seconds[name] = round(time.perf_counter() - began, 3)
    return seconds


def _postgres_cpu(where: str) -> float:
    """Processor seconds of PostgreSQL's processes on this machine; those that have ended count in their parent's."""
    if "://" not in where:
        return 0.0
    servers = [one for one in psutil.process_iter(["name"]) if one.info["name"] == "postgres"]
    spent = 0.0
    for server in servers:
        try:
            times = server.cpu_times()
        except psutil.Error:
            continue
        spent += times.user + times.system
    return spent


def kernels(counts: list[int]) -> list[dict[str, int]]:
    """Distinct builds of sessions of `blocksparse`."""
    found = []
    for count in counts:
        settings = Settings(targets=("blocksparse",), cases=count)
        keys = {build for shard in plan(settings) for build in builds_of(shard, settings, "sm_100a")}
        found.append({"cases": count, "kernels": len(keys)})
        print(found[-1], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, nargs="+", default=[5, 10, 20, 40])
    parser.add_argument("--cases", type=int, default=100_000, help="of a session")
    parser.add_argument("--kernels", type=int, nargs="*", default=[300, 1000, 3000, 10_000])
    parser.add_argument("--database", nargs="+", default=["sqlite", "postgresql"], choices=("sqlite", "postgresql"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    asked = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(asked, capture_output=True, text=True, cwd=ROOT, check=False).stdout.strip()
    result: dict[str, Any] = {"commit": commit, "machine": machine(), "kernels": kernels(options.kernels)}
    source = Night(drawn())
    for database in options.database:
        with tempfile.TemporaryDirectory() as folder, place(database, Path(folder)) as (where, size):
            result[database] = grow(where, source, options.sessions, options.cases, size)
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
