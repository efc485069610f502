"""New findings per cause: sessions of 60 cases on kernels with one planted bug each. One finding a bug is right.

    python ci/benchmarks/findings_per_cause.py --out ci/results/findings_per_cause_host.json
    python ci/benchmarks/findings_per_cause.py --mutants 109 --folder FOLDER

The mutants are a sample of each kernel's, drawn from --seed, in proportion. Each has a session of its own, as users run
it, with minimising. A session that is complete in --folder is not run again.

findings  per mutant: new findings of its session. The mean is over the mutants that were found at all
merged    ordered pairs of mutants of one kernel: how often a session with both bugs would report nothing of its own for
          the second one, because all of its findings count as those of the first. By the signatures alone: that one bug
          may hide the other from every judge is not counted. same_failure: of these, pairs with findings that agree in
          kind, oracle, kernel, line and tensors
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from itertools import permutations
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from fuzz.core.signature import cause, explains
from fuzz.session.failures.one_bug import one_bug
from fuzz.session.pool import new_folder, run_session
from fuzz.session.records import Reader, Record, Settled, machine, settlement
from fuzz.session.settings import Settings
from kernels.mutants.names import BLOCKSPARSE, SDPA

KERNELS = {"sdpa": SDPA, "blocksparse": BLOCKSPARSE}


def sample(count: int, seed: int) -> list[str]:
    """`count` mutants' targets, of each kernel in proportion to how many it has."""
    draw, total = random.Random(seed), sum(map(len, KERNELS.values()))
    shares = {kernel: round(count * len(names) / total) for kernel, names in KERNELS.items()}
    return [f"{kernel}!{name}" for kernel, share in shares.items() for name in draw.sample(KERNELS[kernel], share)]


def session(target: str, folder: Path, cases: int, seed: int, jobs: int) -> None:
    """Runs the session of one mutant, unless `folder` has it."""
    if complete(folder, cases):
        return
    settings = Settings(targets=(target,), cases=cases, seed=seed, folder=str(folder), corpus="")
    run_session(settings, jobs, Console(file=sys.stderr))


def complete(folder: Path, cases: int) -> bool:
    """True if a folder holds a session of so many cases whose failures are all settled."""
    records = settled_records(folder)
    return len(records) >= cases and all(record.status != "met" for record in records)


def settled_records(folder: Path) -> list[Record]:
    """A session's records, with what became of its failures."""
    return settlement(folder).apply(Reader(folder).new())


def row(target: str, folder: Path) -> dict[str, Any]:
    """Figures of one mutant's session."""
    records, ended = settled_records(folder), settlement(folder).settled
    new = [one for one in ended if one.status == "new"]
    return {
        "mutant": target,
        "cases": len(records),
        "failed": sum(bool(record.status) for record in records),
        "raw_causes": len({cause(record.signature).id for record in records if record.signature is not None}),
        "looked_into": len(ended),
        "findings": len(new),
        "as_met": sum(one.note != "" for one in new),
        "signatures": [said(one) for one in new],
    }


def said(one: Settled) -> str:
    """A finding's signature in a line."""
    s = one.signature
    return " ".join(filter(None, (s.kind, s.oracle, s.kernel, ",".join(s.tensors), s.line, "|", ",".join(s.features))))


def merged(folders: dict[str, Path]) -> dict[str, Any]:
    """How many ordered pairs of mutants of one kernel would be one finding."""
    found = {name: [s for s in settlement(folder).settled if s.status == "new"] for name, folder in folders.items()}
    found = {name: findings for name, findings in found.items() if findings}
    pairs = [(a, b) for a, b in permutations(found, 2) if a.partition("!")[0] == b.partition("!")[0]]
    lost = [(a, b) for a, b in pairs if all(any(_hides(x, y) for x in found[a]) for y in found[b])]
    same = [(a, b) for a, b in lost if any(_same(x, y) for x in found[a] for y in found[b])]
    return {
        "pairs": len(pairs),
        "merged": len(lost),
        "same_failure": len(same),
        "share": round(len(lost) / len(pairs), 3) if pairs else 0.0,
        "which": [f"{b} into {a}" for a, b in lost],
    }


def _hides(first: Settled, second: Settled) -> bool:
    """True if a session that has found `first` would not report `second` beside it."""
    raw, signature = (msgspec.structs.replace(s, target=first.raw.target) for s in (second.raw, second.signature))
    second = msgspec.structs.replace(second, raw=raw, signature=signature)
    return one_bug(first, second) or explains(first.signature, raw)


def _same(one: Settled, other: Settled) -> bool:
    a, b = (msgspec.structs.replace(cause(s.signature), target="") for s in (one, other))
    return a == b


def main() -> None:
    """Runs the sessions, prints the figures and writes them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--mutants", type=int, default=24)
    parser.add_argument("--seed", type=int, default=17, help="of the sample (17)")
    parser.add_argument("--session-seed", type=int, default=0, help="of each session's cases (0)")
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folder", help="folder of the sessions (.attnfuzz/sessions/<time>)")
    parser.add_argument("--note", default="", help="kept in the result")
    parser.add_argument("--out")
    options = parser.parse_args()
    folder = Path(options.folder or new_folder())
    folders = {name: folder / name for name in sample(options.mutants, options.seed)}
    rows = []
    for name, place in folders.items():
        session(name, place, options.cases, options.session_seed, options.jobs)
        rows.append(row(name, place))
        print(json.dumps(rows[-1]), flush=True)
    counts = [one["findings"] for one in rows if one["findings"]]
    result = {
        "machine": machine(),
        "note": options.note,
        "seed": options.seed,
        "mutants": len(rows),
        "of": sum(map(len, KERNELS.values())),
        "found": len(counts),
        "findings_per_cause_mean": round(statistics.fmean(counts), 3) if counts else None,
        "findings_per_cause_most": max(counts, default=0),
        "with_one_finding": counts.count(1),
        "merged": merged(folders),
        "rows": rows,
    }
    if options.out:
        Path(options.out).write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps({name: value for name, value in result.items() if name not in ("rows", "machine")}, indent=2))


if __name__ == "__main__":
    main()
