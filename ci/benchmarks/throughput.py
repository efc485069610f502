"""Cases a second of whole sessions, as processes that a user starts: imports, workers and the end are counted too.

    python ci/benchmarks/throughput.py --device cuda --jobs 16 --out ci/results/throughput_h200.json

Three sessions of small cases: torch.sdpa.*, blocksparse with a cache of kernels that is empty, and once more with the
kernels of the one before. Prints a line for each, and writes JSON with the machine, each session's outcomes, and where
the seconds of its workers went.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
sys.path.insert(1, str(ROOT / "ci"))

from summarise_sessions import publish, summary  # noqa: E402

from fuzz.session.records import Reader, machine  # noqa: E402

TARGETS = {"cuda": ("torch.sdpa.efficient", "torch.sdpa.flash", "torch.sdpa.math"), "host": ("torch.sdpa.math",)}
CASES = 60_000  # more than any session comes to: its time ends it
LOOK = 0.05  # seconds between two looks for the first verdict


def session(name: str, targets: tuple[str, ...], seconds: float, options: argparse.Namespace, place: Path) -> dict:
    """Figures of one session, whose cache of kernels is `place`/cache."""
    folder = place / name.replace(" ", "_")
    command = [sys.executable, "-m", "fuzz.cli", "run", "--device", options.device, "--size", "small", "--no-minimize"]
    command += ["--seed", "1", "--cases", str(CASES), "--jobs", str(options.jobs), "--max-time", str(seconds)]
    command += ["--output-dir", str(folder), *(part for target in targets for part in ("--target", target))]
    environment = os.environ | {"ATTNFUZZ_CACHE": str(place / "cache")}
    began, first = time.perf_counter(), 0.0
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
        while process.poll() is None:
            if not first and any(path.stat().st_size for path in folder.glob("records-*.jsonl")):
                first = time.perf_counter() - began
            time.sleep(LOOK)
        wall = time.perf_counter() - began
        if process.returncode not in (0, 1):
            output.seek(0)
            said = output.read().decode(errors="replace")
            raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}:\n{said}")
    found = {"session": name, **summary(folder)}
    found |= {
        "max_time_s": seconds,
        "process_s": round(wall, 1),
        "cases_per_s_start_included": round(found["cases"] / wall, 1),
        "first_verdict_s": round(first, 1),
        "mean_ms": _means(folder),
        "command": " ".join(["attnfuzz", *command[3:]]),
    }
    print(
        f"{name}: {found['cases']} cases in {wall:.1f} s, {found['cases_per_s_start_included']} a second; "
        f"the first verdict after {found['first_verdict_s']} s",
        file=sys.stderr,
    )
    return found


def _means(folder: Path) -> dict[str, float]:
    """Milliseconds of a case by phase, over all cases."""
    records = list(Reader(folder).new())
    spent: Counter[str] = Counter()
    for record in records:
        spent.update(record.seconds)
    return {name: round(1e3 * seconds / len(records), 2) for name, seconds in spent.most_common()}


def main() -> None:
    """Runs the three sessions."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", choices=tuple(TARGETS), default="cuda")
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--seconds", type=float, nargs=3, default=(40.0, 60.0, 90.0), help="of each session")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {"what": "throughput of sessions, start included", "machine": machine()}
    with tempfile.TemporaryDirectory() as folder:
        wanted = (
            ("torch.sdpa", TARGETS[options.device]),
            ("blocksparse, no kernel in the cache", ("blocksparse",)),
            ("blocksparse, kernels in the cache", ("blocksparse",)),
        )
        result["sessions"] = [
            session(name, targets, seconds, options, Path(folder))
            for (name, targets), seconds in zip(wanted, options.seconds, strict=True)
        ]
    publish(result, options.out)


if __name__ == "__main__":
    main()
