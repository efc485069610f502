"""python -m fuzz.score.ptx_mutants: PTX mutants, without the rest of the scoreboard."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec


def main() -> None:
    """Draws mutants, tries them, prints the tables; with --json writes the score, with --folder goes on where it was.
    Exits with 1 where the unchanged kernels fail a case."""
    from fuzz.compiling.build_key import toolchain
    from fuzz.score.ptx_mutants.bench import ARCH
    from fuzz.score.ptx_mutants.render import table
    from fuzz.score.ptx_mutants.run import run
    from fuzz.score.ptx_mutants.survey import lists_of
    from fuzz.score.ptx_mutants.targets import TARGETS

    parser = argparse.ArgumentParser(prog="python -m fuzz.score.ptx_mutants", description=__doc__)
    add = parser.add_argument
    add("--target", choices=TARGETS, default="blocksparse", help="whose kernels are changed (blocksparse)")
    add("--arch", choices=("sm_80", "sm_90a"), default=ARCH, help=f"of Triton's kernels ({ARCH})")
    add("--only", default="", metavar="NAME", help="configurations whose name has this (all)")
    add("--count", type=int, default=300, help="mutants (300)")
    add("--seed", type=int, default=1, help="of the choice of mutants and cases (1)")
    add("--jobs", type=int, default=1, help="processes side by side (1)")
    add("--max-time", type=float, default=0.0, help="seconds after which it ends, whatever still runs; 0: no limit")
    add("--folder", type=Path, help="keeps results, to go on after a stop")
    add("--json", type=Path, help="where the score is written; one file may hold those of several targets")
    given = parser.parse_args()
    score = run(
        *(given.count, given.seed, given.jobs, given.max_time, _told),
        *(given.folder, given.target, given.arch, given.only),
    )
    print(table(score))
    for line in score.clean_failures:
        print(f"left out: {line}")
    if given.json:
        about = {
            "command": "python -m fuzz.score.ptx_mutants " + " ".join(sys.argv[1:]),
            "commit": _commit(),
            "toolchain": [*toolchain(), *_triton(given.target)],
            "arch": given.arch,
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            **asdict(lists_of(given.target)),
        }
        write_score(given.json, given.target, about | msgspec.to_builtins(score))
    sys.exit(int(bool(score.clean_failures)))


def write_score(path: Path, target: str, score: dict[str, Any]) -> None:
    """Writes the score: of blocksparse alone, or beside those of other targets that the file holds."""
    body = score
    if target != "blocksparse":
        known = msgspec.json.decode(path.read_bytes()) if path.exists() else {}
        body = {"targets": dict(sorted((known.get("targets", {}) | {target: score}).items()))}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(body), indent=1) + b"\n")


def _triton(target: str) -> list[str]:
    return [] if target.startswith("blocksparse") else [f"triton {version('triton')}"]


def _told(done: int, total: int, note: str) -> None:
    print(f"{done}/{total} PTX mutants: {note}", file=sys.stderr, flush=True)


def _commit() -> str:
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return asked.stdout.strip()


if __name__ == "__main__":
    main()
