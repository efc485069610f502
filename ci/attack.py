"""Attacks on the harness itself: what must not be lost, confused or blamed on a kernel. Nightly.

    python ci/attack.py files
    python ci/attack.py disks          # needs root, for its small file systems
    python ci/attack.py soak --cases 3000 --workers 2 --kill-every 5 --out ci/results/soak_host.json

Prints a table with the seed, and ends with exit code 1 where something does not hold.
"""

from __future__ import annotations

import argparse
import json
import math
import secrets
import sys
import tempfile
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from attacks import disks, hostile_files, soak
from rich.console import Console
from rich.table import Table


def main() -> int:
    options = _parser().parse_args()
    return options.attack(options)


def _soak(options: argparse.Namespace) -> int:
    seed = options.seed if options.seed is not None else secrets.randbelow(1 << 30)
    with tempfile.TemporaryDirectory(prefix="attnfuzz-soak-") as temporary:
        folder = Path(options.folder or temporary) / "session"
        roles = tuple(options.roles.split(","))
        print(f"seed {seed}; log: {folder.with_suffix('.log')}", flush=True)
        done = soak.soak(
            options.cases,
            options.workers,
            seed,
            options.kill_every,
            folder,
            roles,
            seconds=options.max_time,
            say=partial(print, "soak:", file=sys.stderr, flush=True),
        )
    found = {"command": " ".join(["python", "ci/attack.py", *sys.argv[1:]]), **soak.result(done)}
    table = Table(title=f"Soak, seed {seed}", title_justify="left")
    table.add_column("what")
    table.add_column("seen")
    for name, value in found["result"].items():  # type: ignore[attr-defined]
        table.add_row(name.replace("_", " "), str(value))
    Console(width=120).print(table)
    for line in done.failures:
        print(f"FAILED: {line}")
    if options.out:
        Path(options.out).write_text(json.dumps(found, indent=2) + "\n")
    return 1 if done.failures else 0


def _table(title: str, wrong: dict[str, str]) -> int:
    table = Table(title=title, title_justify="left")
    for name in ("attack", "what does not hold"):
        table.add_column(name)
    for name, text in wrong.items():
        table.add_row(name, text or "–")
    Console(width=120).print(table)
    return 1 if any(wrong.values()) else 0


def _files(options: argparse.Namespace) -> int:
    import fuzz.session.preload  # noqa: F401 - what a command imports is not measured

    with tempfile.TemporaryDirectory(prefix="attnfuzz-files-") as folder:
        files = hostile_files.write(Path(folder))
        pairs = [(command, name) for command in ("repro", "minimize") for name in files]
        wrong = {f"{command}: {name}": hostile_files.measure(command, files[name]) for command, name in pairs}
    return _table("Hostile files", wrong)


def _disks(options: argparse.Namespace) -> int:
    wrong = {}
    for name, attack in disks.ATTACKS.items():
        with tempfile.TemporaryDirectory(prefix="attnfuzz-disks-") as folder:
            wrong[name] = "; ".join(attack(Path(folder)))
    return _table("Full and read-only disks", wrong)


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = made.add_subparsers(required=True, metavar="ATTACK")
    for name, attack, text in (
        ("files", _files, "hostile files, each in a process of its own"),
        ("disks", _disks, "a corpus and a cache that are full or read-only; needs root"),
    ):
        sub.add_parser(name, help=text).set_defaults(attack=attack)
    one = sub.add_parser("soak", help="a session whose processes are killed at random, resumed until it is complete")
    one.add_argument("--cases", type=int, default=3000, metavar="N", help="cases of the session (3000)")
    one.add_argument("--workers", type=int, default=2, metavar="N", help="worker processes of the session (2)")
    one.add_argument("--kill-every", type=float, default=5.0, metavar="SECONDS", help="from kill to kill, mean (5)")
    one.add_argument(
        "--max-time",
        type=float,
        default=math.inf,
        metavar="SECONDS",
        help="stop then, judge what was run",
    )
    one.add_argument("--seed", type=int, metavar="S", help="of the session and of the kills (drawn, and printed)")
    one.add_argument(
        "--roles", default=",".join(soak.ROLES), metavar="A,B", help=f"who is killed ({','.join(soak.ROLES)})"
    )
    one.add_argument(
        "--folder", metavar="DIR", help="where the session and its log go; a soak stopped there goes on (temporary)"
    )
    one.add_argument("--out", metavar="OUT.json", help="write the result as JSON")
    one.set_defaults(attack=_soak)
    return made


if __name__ == "__main__":
    sys.exit(main())
