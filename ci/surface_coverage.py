"""Surface coverage of every target of both devices: which parameters of the functions that it calls a session gives.

    python -m ci.surface_coverage --cases 1000 --seed 0 ci/results/surface_coverage.json

Draws the cases that a session with that seed draws for each target and lets the adapters make their calls on tensors on
the CPU, up to the kernel (fuzz/session/summary/dry_calls.py): no GPU is needed. Targets whose packages are not
importable here are named with the reason. xFormers cannot be imported beside flash-attn-4: it is measured by itself
(--add xformers).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from fuzz.core.surface import Given
from fuzz.core.target import Device
from fuzz.session.records import machine
from fuzz.session.settings import Settings
from fuzz.session.summary.dry_calls import dry_coverage
from fuzz.session.summary.surface_coverage import totals
from fuzz.targets.registry import targets

DEVICES: tuple[Device, ...] = ("host", "cuda")


def main(arguments: list[str] | None = None) -> int:
    """Writes the result; exit code 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("--cases", type=int, default=1000, help="cases of each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--add", default="", metavar="PREFIX", help="of these targets, to a result that is there")
    parser.add_argument("--commit", default="", help="what is measured, where it is not the commit that is checked out")
    options = parser.parse_args(arguments)
    found: dict[str, Any] = {"machine": machine(), "cases": options.cases, "seed": options.seed}
    found["machine"]["command"] = " ".join(["python -m ci.surface_coverage", *(arguments or sys.argv[1:])])
    if options.commit:
        found["commit"] = options.commit
    found["targets"], found["not_measured"] = {}, {}
    if options.add:
        found = json.loads(options.result.read_text())
        found["machine"]["command"] += f"; --add {options.add} where these can be imported"
    for device in DEVICES:
        for name, target in targets((), device).items():
            if not target.surfaces() or not name.startswith(options.add):
                continue
            settings = Settings(targets=(name,), device=device, cases=options.cases, seed=options.seed)
            label = f"{name} ({target.device})"
            print(label, file=sys.stderr, flush=True)
            try:
                found["targets"][label] = [_row(given) for given in dry_coverage(settings)[name]]
                found["not_measured"].pop(label, None)
            except (ImportError, AssertionError, RuntimeError) as error:
                found["not_measured"][label] = str(error).split("\n")[0]
    options.result.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def _row(given: Given) -> dict[str, Any]:
    surface = given.surface
    here, every, pairs, every_pair = totals(given)
    return {
        "function": surface.name,
        "cases": given.cases,
        "parameters": every,
        "given": here,
        "pairs": every_pair,
        "pairs_given": pairs,
        "times": {name: given.parameters[name] for name in surface.names},
        "kinds": {name: sorted(kinds) for name, kinds in given.kinds.items()},
        "kinds_never": {name: never for name in surface.names if (never := given.missing_kinds(name))},
        "never": {name: surface.never.get(name, "") for name in given.never()},
        "pairs_unexplained": [" + ".join(pair) for pair in given.unexplained_pairs()],
    }


if __name__ == "__main__":
    sys.exit(main())
