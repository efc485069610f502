"""Attacks on the harness itself: what must not be lost, confused or blamed on a kernel. Nightly.

    python ci/attack.py soak --cases 3000 --workers 2 --kill-every 5 --out ci/results/soak_host.json

Prints a table with the seed, and ends with exit code 1 where something does not hold.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from attacks import soak
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
        done = soak.soak(options.cases, options.workers, seed, options.kill_every, folder, roles)
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


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = made.add_subparsers(required=True, metavar="ATTACK")
    one = sub.add_parser("soak", help="a session whose processes are killed at random, resumed until it is complete")
    one.add_argument("--cases", type=int, default=3000, metavar="N", help="cases of the session (3000)")
    one.add_argument("--workers", type=int, default=2, metavar="N", help="worker processes of the session (2)")
    one.add_argument("--kill-every", type=float, default=5.0, metavar="SECONDS", help="from kill to kill, mean (5)")
    one.add_argument("--seed", type=int, metavar="S", help="of the session and of the kills (drawn, and printed)")
    one.add_argument(
        "--roles", default=",".join(soak.ROLES), metavar="A,B", help=f"who is killed ({','.join(soak.ROLES)})"
    )
    one.add_argument("--folder", metavar="DIR", help="where the session and its log go (a temporary folder)")
    one.add_argument("--out", metavar="OUT.json", help="write the result as JSON")
    one.set_defaults(attack=_soak)
    return made


if __name__ == "__main__":
    sys.exit(main())
