"""Makes the history of the demonstration site: real sessions, over revisions of this repository, as nights of a ledger.

    python ci/demo/history.py --work /tmp/demo --out ci/demo/history.jsonl.xz

Each night is a revision (`git archive`, no worktree) in which `attnfuzz run` fuzzes targets that a CPU runs: PyTorch's,
the bundled Triton kernel in the interpreter, mutants, fakes of tests/fakes, and a kernel of a user's, own.py beside
this file, which has a bug in some nights. Every count, time and verdict is of these sessions. Assigned are only the
dates (one night a day, up to 2026-11-23) and the host's name. Figures of benchmarks come from the git history of
ci/results, with their commits' times. Takes 15 minutes on two cores; a session that is there already is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HOST = "demo-host"
LATEST = datetime(2026, 11, 23, 2, tzinfo=UTC)
LIES, HANGS = "tests/fakes/lies.py", "tests/fakes/hangs.py"
OWN = str(HERE / "own.py")


@dataclass(frozen=True)
class Run:
    """A session. bugs: of own.py, comma-separated."""

    targets: tuple[str, ...]
    cases: int
    files: tuple[str, ...] = ()
    bugs: str = ""
    device: str = "host"


def _plain(cases: int = 40) -> Run:
    return Run(("torch.sdpa.math", "torch.sdpa.flash", "sdpa"), cases)


def _own(bugs: str) -> Run:
    return Run(("own",), 16, (OWN,), bugs)


FLAKY = Run(("fake.flaky",), 12, (LIES,))
HANGING = Run(("fake.hangs_above_100_keys",), 12, (HANGS,))
MUTANT = Run(("sdpa!bias_scaled",), 24)
LOCK = Run(("blocksparse!lock_is_n_block",), 10)
NIGHTS: tuple[tuple[str, tuple[Run, ...]], ...] = (
    ("5ea3a09", (_plain(), _own("nan_rows"))),
    ("f4f97fc", (_plain(50), _own("nan_rows"))),
    ("236e59d", (_plain(), _own("nan_rows"), HANGING)),
    ("e03f45f", (_plain(60), _own(""))),
    ("2724f02", (_plain(), _own(""), FLAKY)),
    ("25e95bc", (_plain(50), _own(""), FLAKY)),
    ("847d08c", (_plain(), _own("dv_unscaled"), FLAKY, MUTANT)),
    ("47a89ea", (_plain(), _own("dv_unscaled"), HANGING)),
    ("5ed3eeb", (_plain(60), _own("dv_unscaled"), MUTANT)),
    ("d76bc1c", (_plain(), _own("dv_unscaled"), FLAKY)),
    ("7204710", (_plain(50), _own(""), HANGING)),
    ("c84fbee", (_plain(60), _own("nan_rows"), FLAKY, MUTANT, Run(("fake.ignores_softcap",), 12, (LIES,)), LOCK)),
)
FIXED_AFTER = (4, 11)  # nights after which the saved cases of `own` are run again


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="sessions and revisions go there")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSON Lines")
    parser.add_argument("--nights", type=int, default=len(NIGHTS), metavar="N", help="the first N (all)")
    options = parser.parse_args()
    work = options.work.resolve()
    ledger = work / "ledger.sqlite"
    ledger.unlink(missing_ok=True)
    for number, (revision, runs) in enumerate(NIGHTS[: options.nights], 1):
        tree = _tree(work, revision)
        for place, run in enumerate(runs):
            folder = _session(tree, run, number, place)
            _assign(folder, revision, number, place)
            _take_in(ledger, folder)
        if number in FIXED_AFTER:
            _replay(ledger, number)
    _measure(ledger)
    _export(ledger, options.out, work)
    return 0


def _tree(work: Path, revision: str) -> Path:
    tree = work / revision
    if not tree.is_dir():
        tree.mkdir(parents=True)
        archive = subprocess.run(["git", "-C", ROOT, "archive", revision], stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "-x", "-C", tree], input=archive.stdout, check=True)
    return tree


def _session(tree: Path, run: Run, number: int, place: int) -> Path:
    folder = tree / "sessions" / f"{number:02}-{place}"
    if (folder / "done").is_file():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    words = [word for name in run.targets for word in ("--target", name)]
    words += [word for file in run.files for word in ("--target-file", file)]
    words += ["--cases", str(run.cases), "--seed", str(number), "--size", "small", "--device", run.device]
    command = [sys.executable, "-m", "fuzz.cli", "run", *words, "--jobs", "1", "--output-dir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(tree), "OWN_BUGS": run.bugs, "ATTNFUZZ_LEDGER": "none"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if not any(folder.glob("records-*.jsonl")):  # one that a fault of the harness cut off stays as it is
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
    (folder / "done").touch()
    print(f"night {number}: {run.targets}: exit code {done.returncode}", flush=True)
    return folder


def _assign(folder: Path, revision: str, number: int, place: int) -> None:
    """Gives the session its night, and what a checkout would have said of the revision."""
    path = folder / "session.json"
    session = json.loads(path.read_text())
    began = LATEST.timestamp() - (len(NIGHTS) - number) * 86400 + place * 1200
    if session.get("night") != (night := datetime.fromtimestamp(began, UTC).date().isoformat()):
        moved = began - (session.get("since") or path.stat().st_mtime)
        for file in [*folder.glob("records-*.jsonl"), *folder.glob("settled-*.jsonl")]:
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            text = "".join(json.dumps({**x, "at": x["at"] + moved} if x.get("at") else x) + "\n" for x in lines)
            file.write_text(text)
        session |= {"since": began, "night": night, "skip": {}}
    commit, at = _git("log", "-1", "--format=%H %ct", revision).split()
    session["environment"] = {**_environment(), **session.get("environment", {})}
    session["environment"] |= {"host": HOST, "commit": commit, "changed": False, "at": float(at)}
    path.write_text(json.dumps(session))
    os.utime(path)
    for file in folder.glob("*.jsonl"):
        os.utime(file, (began + 600, began + 600))


def _git(*arguments: str) -> str:
    return subprocess.run(["git", "-C", ROOT, *arguments], stdout=subprocess.PIPE, check=True).stdout.decode()


def _environment() -> dict[str, Any]:
    import msgspec

    from fuzz.session.environment import environment

    return msgspec.to_builtins(environment())


def _take_in(ledger: Path, folder: Path) -> None:
    from fuzz.ledger.ingest.feed import take_in
    from fuzz.ledger.tables.database import Ledger

    with Ledger(str(ledger)) as opened:
        take_in(opened, folder)


def _replay(path: Path, night: int) -> None:
    """Runs the saved cases of `own`, without its bug, a few hours after a night."""
    import msgspec

    from fuzz.ledger.ingest.environment import here
    from fuzz.ledger.ingest.write import write_single
    from fuzz.ledger.query.signatures import signatures
    from fuzz.ledger.replaying import replay, runs_to_do
    from fuzz.ledger.tables.database import Ledger
    from fuzz.runner import Runner

    os.environ["OWN_BUGS"] = ""
    at = LATEST.timestamp() - (len(NIGHTS) - night) * 86400 + 4 * 3600
    with Ledger(str(path)) as ledger, Runner("host", files=(OWN,)) as runner:
        for known in signatures(ledger):
            if known.signature.target == "own" and known.life.failing:
                row = replay(known, runner.run, "host", runs_to_do(known, "host"), **here())
                if row is not None:
                    hardware = msgspec.structs.replace(row.hardware, host=HOST)
                    write_single(ledger, [msgspec.structs.replace(row, at=at, hardware=hardware)])


def _measure(path: Path) -> None:
    from fuzz.ledger.ingest.write import write_single
    from fuzz.ledger.tables.database import Ledger
    from fuzz.ledger.tables.rows import Hardware, MeasurementRow, Revision

    rows: dict[
        tuple[str, float], MeasurementRow
    ] = {}  # a commit that did not measure again repeats a value: it counts once
    for file, figures in (("score_host.json", _score), ("blocksparse_speed_h200.json", _speed)):
        for line in _git(
            "log", "--reverse", "--format=%H %ct", "--diff-filter=AM", "--", f"ci/results/{file}"
        ).splitlines():
            commit, at = line.split()
            result = json.loads(_git("show", f"{commit}:ci/results/{file}"))
            where: tuple[Hardware, dict[str, str], Revision]
            gpu = str(result.get("machine", {}).get("gpu", "")).split(",")[0]
            for series, value, unit in figures(result):
                name = f"{series} {commit}"
                if (series, float(value)) in rows:
                    continue
                where = Hardware(gpu=gpu), {}, Revision(commit, False, float(at))
                rows[series, float(value)] = MeasurementRow(name, series, float(at), float(value), unit, *where)
    with Ledger(str(path)) as ledger:
        write_single(ledger, rows.values())


def _score(result: dict[str, Any]) -> Iterator[tuple[str, float, str]]:
    if {"mutants", "found", "median", "worst"} <= result.keys():
        yield "scoreboard: mutants", result["mutants"], "mutants"
        yield "scoreboard: mutants found", result["found"], "mutants"
        yield "scoreboard: median cases until found", result["median"], "cases"


def _speed(result: dict[str, Any]) -> Iterator[tuple[str, float, str]]:
    for row in result.get("rows", ()):
        place = f"{row['mask']} {row['tokens']:,} × {row['dim']}" if "dim" in row else ""
        if place and row.get("heads") == [16, 16] and row["tokens"] == 32768 and row["dim"] == 128:
            for name, value in row.get("ms", {}).items():
                if name in ("forward", "default"):
                    yield f"blocksparse {row['direction']} {place}", value, "ms"


def _export(ledger: Path, out: Path, work: Path) -> None:
    """Writes the ledger, with this machine's folders left out of its texts."""
    import lzma

    from fuzz.ledger.query.unload import Selection
    from fuzz.ledger.tables.database import Ledger
    from fuzz.ledger.transfer import export

    plain = work / "history.jsonl"
    with Ledger(str(ledger)) as opened:
        export(opened, str(plain), Selection())
    text = plain.read_text()
    for revision, _ in NIGHTS:
        text = text.replace(f"{work / revision}/", "")
    text = text.replace(f"{ROOT}/", "").replace(sys.prefix, ".venv").replace(sys.base_prefix, "python")
    out.write_bytes(lzma.compress(text.encode(), preset=9))
    print(f"{out}: {out.stat().st_size} bytes, {len(text.splitlines())} lines")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
