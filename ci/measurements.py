"""Figures of ci/results/ as points of the ledger's series, which the dashboard draws with their change points.

    python -m ci.measurements ci/results/*.json [--history] [--ledger URL] [--dry-run]

READERS names the kinds of results and what is kept of each: few figures, so that a page holds them. A result that is
read again counts once. --history reads every committed version of the files too (`git log`), so that a series begins
with the first measurement. Files of other kinds are named and left out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from fuzz.ledger.tables.rows import MeasurementRow, content_id

Result: TypeAlias = Mapping[str, Any]
Figure: TypeAlias = tuple[str, float, str]  # series, value, unit
SHAPE = (ValueError, LookupError, TypeError, AttributeError)  # of a result that is not as its reader expects


def scoreboard(result: Result) -> Iterator[Figure]:
    """Mutants: `attnfuzz mutation-score --out`."""
    kind = "check" if result["settings"].get("limits") else f"{result['settings']['cases']} cases"
    yield f"scoreboard, {kind}: share of mutants found", result["found"] / result["mutants"], "share"
    yield f"scoreboard, {kind}: cases until found, median mutant", result["median"], "cases"
    yield f"scoreboard, {kind}: cases until found, worst mutant", result["worst"], "cases"


def block_sparse(result: Result) -> Iterator[Figure]:
    """Bundled kernels: geometric mean over the rows of a direction (benchmarks/blocksparse_speed.py)."""
    ratios: dict[str, list[float]] = {}
    for row in result["rows"]:
        flex = row.get("flex_ms")
        for way, ms in (row.get("ms") or {}).items() if flex else ():
            best = min(flex) if isinstance(flex, list) else flex
            ratios.setdefault(f"{row['direction']}, {way}", []).append(best / ms)
    for name, found in sorted(ratios.items()):
        mean = math.exp(sum(map(math.log, found)) / len(found))
        yield f"blocksparse {name}: speed over compiled FlexAttention, mean of {len(found)}", mean, "times"


def harness(result: Result) -> Iterator[Figure]:
    """Sessions (benchmarks/harness.py, throughput.py)."""
    sessions = result["sessions"] if isinstance(result["sessions"], list) else ()
    for one in sessions:
        what = str(one.get("session") or ", ".join(one.get("targets") or ()))
        speed = one.get("cases_per_s", one.get("cases_per_s_start_included"))
        if what and speed:
            size = f", {one['size']} cases" if one.get("size") else ""
            yield f"sessions of {what}{size}, {one['workers']} workers", speed, "cases/s"


def emulator(result: Result) -> Iterator[Figure]:
    """The emulated GPU (benchmarks/emulator_speed.py)."""
    for checks, words in (("off", "without checks"), ("all", "with all checks")):
        if value := result.get(f"tile_pairs_per_second_{checks}"):
            yield f"emulated GPU {words}", value, "tile pairs/s"


def compiling(result: Result) -> Iterator[Figure]:
    """Compiling ahead (benchmarks/compile_rate.py)."""
    for one in result["rate"]:
        yield f"compiling ahead, {one['jobs']} jobs", one["keys_per_minute"], "kernels/min"


def report(result: Result) -> Iterator[Figure]:
    """The dashboard (benchmarks/report.py)."""
    size = f"{result['nights']} nights, {result['signatures']} signatures"
    yield f"attnfuzz report, {size}: processor time", result["processor_seconds"], "s"
    yield f"attnfuzz report, {size}: site", result["bytes"] / 1e6, "MB"


def ledger(result: Result) -> Iterator[Figure]:
    """The ledger (benchmarks/ledger.py)."""
    for database in ("sqlite", "postgresql"):
        for one in result[database]["writers"]:
            name = f"ledger in {database}, {one['writers']} writers, batches of {one['batch']}"
            yield name, one["runs_per_s"], "runs/s"


def ledger_growth(result: Result) -> Iterator[Figure]:
    """A ledger that grows (benchmarks/ledger_growth.py)."""
    for database in ("sqlite", "postgresql"):
        largest = result[database][-1]
        yield f"ledger in {database}, {largest['runs']} runs: size", largest["bytes"] / 1e6, "MB"


def blackwell(result: Result) -> Iterator[Figure]:
    """Kernels by tcgen05 (benchmarks/blackwell_speed.py); nothing of a run on the emulated GPU."""
    for row in () if result["emulated"] else result["tcgen05"]:
        heads = "/".join(map(str, row["heads"]))
        shape = f"{row['mask']} {row['tokens']}, dim {row['dim']}, {heads} heads"
        for way, rate in row["tflops"].items():
            yield f"{way}: {shape}", rate, "TFLOP/s"


def conformance(result: Result) -> Iterator[Figure]:
    """Published configurations (attnfuzz conformance --json)."""
    for status, count in sorted(result["counts"].items()):
        yield f"published configurations, {result['target']}: {status}", count, "cases"


@dataclass(frozen=True)
class Reader:
    """A kind of result: keys that it has at its top, and its figures."""

    keys: frozenset[str]
    figures: Callable[[Result], Iterator[Figure]]


READERS = tuple(
    Reader(frozenset(keys.split()), figures)
    for keys, figures in (
        ("bugs by mutants found median worst", scoreboard),
        ("rows tile jobs", block_sparse),
        ("tcgen05 left_out", blackwell),
        ("target counts rows ok", conformance),
        ("sessions machine", harness),
        ("tile_pairs_per_second_off", emulator),
        ("rate keys arch", compiling),
        ("nights signatures bytes_by_part", report),
        ("kernels sqlite postgresql", ledger_growth),
        ("sqlite postgresql", ledger),
    )
)


def points(result: Result, name: str, at: float) -> list[MeasurementRow]:
    """The points of a result; none: it is of no kind that READERS has.

    name  the file's stem; what follows its last '_' names the machine ('h200'), so that machines are not mixed. One
          without '_' was measured here
    at    when it was measured, where it does not say so itself
    """
    from fuzz.ledger.ingest.environment import rows_of
    from fuzz.session.environment import Environment, environment

    reader = next((one for one in READERS if one.keys <= result.keys()), None)
    if reader is None:
        return []
    machine = result["machine"] if isinstance(result.get("machine"), dict) else {}
    commit = str(result.get("commit") or machine.get("commit") or "")
    _, elsewhere, place = name.rpartition("_")
    about = Environment(commit=commit) if elsewhere else environment()
    hardware, toolchain, revision = rows_of(machine, about)
    at = _date(str(machine.get("date", ""))) or at
    place = place if elsewhere else hardware.host
    return [
        MeasurementRow(content_id([series, place, at, value]), f"{series} [{place}]", at, float(value), unit,
                       hardware, toolchain, revision)
        for series, value, unit in reader.figures(result)
    ]  # fmt: skip


def versions(path: Path) -> Iterator[tuple[float, bytes]]:
    """Time and content of every committed version of a file, the oldest first."""

    def git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["git", *arguments], cwd=path.parent, capture_output=True, check=False)

    for line in git("log", "--reverse", "--format=%H %ct", "--", path.name).stdout.decode().splitlines():
        commit, at = line.split()
        shown = git("show", f"{commit}:./{path.name}")
        if not shown.returncode:  # else the commit removed it
            yield float(at), shown.stdout


def read(path: Path, *, history: bool = False) -> list[MeasurementRow]:
    """The points of a file. Committed versions of an older form count as far as they can be read. Raises ValueError
    for a file that has another form than its kind; OSError."""
    found: dict[str, MeasurementRow] = {}

    def keep(content: bytes, at: float) -> None:
        result = json.loads(content)
        for point in points(result, path.stem, at) if isinstance(result, dict) else ():
            found.setdefault(content_id([point.series, point.value, point.revision]), point)  # measured once

    for at, content in versions(path) if history else ():
        with suppress(*SHAPE):
            keep(content, at)
    try:
        keep(path.read_bytes(), path.stat().st_mtime)
    except SHAPE as error:
        raise ValueError(f"has not the form of its kind: {type(error).__name__}: {error}") from error
    return list(found.values())


def main(arguments: Iterable[str] | None = None) -> int:
    """Exit code: 0, or 2 where a file could not be read."""
    parser = argparse.ArgumentParser(prog="python -m ci.measurements", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.json")
    parser.add_argument("--history", action="store_true", help="every committed version of the files too")
    default = os.environ.get("ATTNFUZZ_LEDGER") or ".attnfuzz/ledger.sqlite"
    parser.add_argument("--ledger", default=default, metavar="URL")
    parser.add_argument("--dry-run", action="store_true", help="print the points, and write nothing")
    given = parser.parse_args(None if arguments is None else list(arguments))
    rows: list[MeasurementRow] = []
    code = 0
    for path in given.files:
        try:
            found = read(path, history=given.history)
        except (OSError, ValueError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            code = 2
            continue
        rows += found
        print(f"{path}: {len(found)} points" if found else f"{path}: no figures of a kind that is kept")
    if given.dry_run:
        for row in rows:
            print(f"{datetime.fromtimestamp(row.at, UTC):%Y-%m-%d %H:%M} {row.series}: {row.value:.6g} {row.unit}")
        return code
    from fuzz.ledger.ingest.write import write_single
    from fuzz.ledger.tables.database import Ledger

    with Ledger(given.ledger) as ledger_:
        write_single(ledger_, rows)
    return code


def _date(text: str) -> float:
    """Seconds of the epoch of '2026-11-23 21:08 UTC'; 0: it is none."""
    try:
        return datetime.strptime(text, "%Y-%m-%d %H:%M UTC").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0


if __name__ == "__main__":
    sys.exit(main())
