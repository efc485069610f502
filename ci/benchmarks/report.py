"""Seconds and bytes of `attnfuzz report` for 200 nights of 20,000 cases.

    python ci/benchmarks/report.py [--nights 200] [--cases 20000] [--copies 6] [--runs] [--out FILE.json]

The ledger is resampled, not measured: each night draws its cases with replacement from the runs of the demonstration's
history (ci/demo/history.jsonl.xz), with their targets, outcomes, features and seconds, and counts tallies, pairs of
features and timings over them. Each signature of the history stands in it `--copies` times, as of other
kinds, and is met in a night if a drawn run has it. Only the report's own time and size are results. Its rows for each
case are written with --runs alone (4 million in two minutes): the report does not read them.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
HISTORY = ROOT / "ci" / "demo" / "history.jsonl.xz"
FIRST = 1_770_000_000.0
DAY = 86400.0
RAN = ("pass", "fail", "flake", "hang", "crash")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nights", type=int, default=200)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--copies", type=int, default=6, help="of each signature (6)")
    parser.add_argument("--runs", action="store_true", help="write a row for each case too")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="ledger and site go there")
    parser.add_argument("--out", type=Path, default=ROOT / "ci" / "results" / "report_host.json", metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = options.keep or Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        ledger = work / "ledger.sqlite"
        ledger.unlink(missing_ok=True)
        signatures = fill(ledger, options)
        result = {**about(options), "signatures": signatures, "ledger_bytes": ledger.stat().st_size}
        result |= measure(ledger, work / "site")
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return 0


def about(options: argparse.Namespace) -> dict[str, Any]:
    from fuzz.session.records import machine

    commit = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    )
    return {
        "what": "attnfuzz report over a resampled ledger: rows drawn from ci/demo/history.jsonl.xz",
        "commit": commit.stdout.strip(),
        "machine": machine(),
        "nights": options.nights,
        "cases_a_night": options.cases,
        "rows_of_runs": options.runs,
    }


def measure(ledger: Path, site: Path) -> dict[str, Any]:
    """Runs the command; its seconds by the clock and of processors, with all its start, and the site's bytes."""
    command = [sys.executable, "-m", "fuzz.cli", "report", "--ledger", str(ledger), "--out", str(site)]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, cwd=ROOT, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    sizes = {path: path.stat().st_size for path in site.rglob("*") if path.is_file()}
    kinds = {"assets": 0, "data": 0, "signature": 0, "pages": 0}
    for path, size in sizes.items():
        part = path.relative_to(site).parts[0]
        kinds[part if part in kinds else "pages"] += size
    return {
        "seconds_by_the_clock": round(time.monotonic() - began, 1),
        "processor_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "peak_mebibytes": after.ru_maxrss >> 10,
        "bytes": sum(sizes.values()),
        "bytes_by_part": kinds,
        "files": len(sizes),
    }


def fill(path: Path, options: argparse.Namespace) -> int:
    """Writes the ledger; returns the number of its signatures."""
    import lzma

    from fuzz.ledger.ingest.write import write
    from fuzz.ledger.query.signatures import signatures
    from fuzz.ledger.tables.database import Ledger
    from fuzz.ledger.tables.rows import Batch, RunRow
    from fuzz.ledger.transfer import Line, RunsLine, SessionLine, _unpacked

    sessions: list[Batch] = []
    runs: list[RunRow] = []
    with lzma.open(HISTORY) as file:
        next(file)
        for text in file:
            line = msgspec.json.decode(text, type=Line)
            if isinstance(line, SessionLine):
                sessions.append(line.batch)
            elif isinstance(line, RunsLine):
                runs += _unpacked(line)
    draw = np.random.default_rng(0)
    features = list(dict.fromkeys(name for run in runs for name in run.features))
    place = {name: i for i, name in enumerate(features)}
    has = np.zeros((len(runs), len(features)), np.float32)
    for row, run in zip(has, runs, strict=True):
        row[[place[name] for name in run.features]] = 1
    with Ledger(str(path)) as ledger:
        for night in range(options.nights):
            chosen = np.asarray(draw.integers(len(runs), size=options.cases))
            batch = _night(night, chosen, runs, has, features, sessions, draw, options)
            write(ledger, batch)
        return len(signatures(ledger))


def _night(
    night: int, chosen: np.ndarray, runs: list, has: np.ndarray, features: list[str], sessions: list, draw: Any,
    options: argparse.Namespace,
) -> Any:  # fmt: skip
    from collections import Counter
    from datetime import UTC, datetime

    from fuzz.ledger.tables.rows import FAILING, Batch, CoverageRow, TallyRow

    began = FIRST + night * DAY
    like = sessions[int(draw.integers(len(sessions)))]
    drawn = [runs[i] for i in chosen]
    tallies: dict[tuple[str, str], list[float]] = {}
    for run in drawn:
        one = tallies.setdefault((run.target, run.outcome), [0, 0.0])
        one[0], one[1] = one[0] + 1, one[1] + run.seconds
    ran = chosen[[runs[i].outcome in RAN for i in chosen]]
    failed = chosen[[runs[i].outcome in FAILING for i in chosen]]
    together, bad = (has[some].T @ has[some] for some in (ran, failed))
    pairs = zip(*np.nonzero(np.triu(together)), strict=True)
    timings = [row for batch in sessions for row in batch.timings]
    met = Counter(run.signature for run in drawn if run.signature)
    findings = [row for batch in sessions for row in batch.findings if row.signature.id in met]
    findings = list({row.signature.id: row for row in findings}.values())
    session = msgspec.structs.replace(
        like.session,
        uid=f"resampled{night:04}",
        began=began,
        ended=began + 6 * 3600,
        night=datetime.fromtimestamp(began, UTC).date().isoformat(),
        planned=options.cases,
        archs={target: "host" for target, _ in tallies},
        folder="",
    )
    return Batch(
        session,
        runs=tuple(msgspec.structs.replace(run, place=i, signature="") for i, run in enumerate(drawn)) * options.runs,
        findings=tuple(_copy(row, k, began, met) for row in findings for k in range(options.copies)),
        tallies=tuple(TallyRow(*key, int(count), seconds) for key, (count, seconds) in tallies.items()),
        timings=tuple({(row.target, row.phase): row for row in timings}.values()),
        coverage=tuple(CoverageRow(features[i], features[j], int(together[i, j]), int(bad[i, j])) for i, j in pairs),
        compiles=like.compiles,
    )


def _copy(row: Any, number: int, began: float, met: dict[str, int]) -> Any:
    """A finding as one of another kind; number 0: as it is."""
    if not number:
        return msgspec.structs.replace(row, at=began + 60, met=met[row.signature.id])
    return msgspec.structs.replace(
        row,
        signature=msgspec.structs.replace(row.signature, kind=f"{row.signature.kind}_{number}"),
        at=began + 60,
        met=met[row.signature.id],
    )


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
