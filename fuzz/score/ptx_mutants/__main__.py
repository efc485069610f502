"""python -m fuzz.score.ptx_mutants: PTX mutants, without the rest of the scoreboard."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from pathlib import Path

import msgspec


def main() -> None:
    """Draws mutants, tries them, prints the tables; with --json writes the score, with --folder goes on where it
    was."""
    from fuzz.compiling.build_key import toolchain
    from fuzz.score.ptx_mutants.render import table
    from fuzz.score.ptx_mutants.run import run
    from fuzz.score.ptx_mutants.trial import CASES, MOST, WIDE

    parser = argparse.ArgumentParser(prog="python -m fuzz.score.ptx_mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.0, help="begin no mutant after so many; 0: no limit")
    parser.add_argument("--folder", type=Path, help="keeps results, to go on after a stop")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    score = run(given.count, given.seed, given.jobs, given.seconds, _told, given.folder)
    print(table(score))
    if given.json:
        about = {
            "command": "python -m fuzz.score.ptx_mutants " + " ".join(sys.argv[1:]),
            "commit": _commit(),
            "toolchain": list(toolchain()),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "cases": CASES,
            "wide": WIDE,
            "most": MOST,
        }
        body = about | msgspec.to_builtins(score)
        given.json.write_bytes(msgspec.json.format(msgspec.json.encode(body), indent=1) + b"\n")


def _told(done: int, total: int, note: str) -> None:
    print(f"{done}/{total} PTX mutants: {note}", file=sys.stderr, flush=True)


def _commit() -> str:
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return asked.stdout.strip()


if __name__ == "__main__":
    main()
