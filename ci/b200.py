"""Everything that is to be shown of the block-sparse kernels on a B200, in one file for the ledger.

    make b200                      the plan below on this machine's GPU (ARGS="--cases 1000 --out night")
    python ci/b200.py --dry-run    prints the commands, and runs none
    python ci/b200.py --emulated --cases 4 --out /tmp/b200    tries the plan on the emulated GPU, small

No GPU of this kind has run products="tcgen05": the first run tests it. Steps, each of which runs whatever became of the
one before; the exit code is 1 where one of them found something, and 2 where one could not run.

    kernels      compiles what the sessions need; conformance compiles its own before it runs them, and the kernels of
                 `speed` are compiled by the warm-up of a row, which is not timed
    list         the published configurations (corpus/must_pass), with products="tcgen05"
    conformance  runs them, and as they are by the portable kernels
    session      5,000 cases by tcgen05, forward and backward; deterministic ones run 20 times; and a tenth as many of
                 the forward kernel with two query tiles in a CTA, and of the backward kernel of pairs of CTAs, whose
                 deterministic ones run 20 times too
    speed        forward and backward beside the portable kernels, and FlashAttention-4 where it imports
    ledger       conformance and speed as series beside the session, and all of it as OUT/b200.jsonl.gz

Send OUT/b200.jsonl.gz, which `attnfuzz import` reads, and OUT/session for findings. A hang or a crash is a finding: the
session goes on after it. ci/results/blackwell_prediction_host.json has the speed that was predicted.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE = "ci/blocksparse_tcgen05.py"
TARGET = "blocksparse.tcgen05"
# What the sessions after the main one are of → their targets, and the folders of their results
FURTHER = {
    "two query tiles": (f"{TARGET}_pairs", "session_pairs"),
    "pairs of CTAs": (f"{TARGET}_cta_pairs", "session_cta_pairs"),
}
SMALL = 1 << 14  # pairs of query and key of a published configuration that is run emulated


@dataclass(frozen=True)
class Step:
    """A command of the plan. into: the file that its output goes to; found: exit codes that mean findings."""

    name: str
    command: tuple[str, ...]
    into: str = ""
    found: tuple[int, ...] = (1,)


def plan(given: argparse.Namespace) -> list[Step]:
    """The steps, in order."""
    out, device = given.out, "emulator" if given.emulated else "cuda"
    place = "emulated" if given.emulated else "b200"
    fuzz = (sys.executable, "-m", "fuzz.cli.main")
    of = ("--device", device, "--target-file", FILE)
    each = ("--seed", str(given.seed), "--size", "small")
    session = ("--target", TARGET, *of, "--cases", str(given.cases), *each)
    fewer = ("--cases", str(-(-given.cases // 10)))
    sessions = {"": session} | {f", {name}": ("--target", at, *of, *fewer, *each) for name, (at, _) in FURTHER.items()}
    compiled = {name: [word.replace("emulator", "host") for word in words] for name, words in sessions.items()}
    repeats = ("--repeats-deterministic", "3" if given.emulated else "20")
    jobs = ("--jobs", str(given.jobs)) if given.jobs else ()
    ledger = ("--ledger", f"{out}/ledger.sqlite")
    speed, files = f"{out}/speed_{place}.json", [f"{out}/conformance_{place}.json", f"{out}/speed_{place}.json"]
    listed = f"{out}/must_pass"
    portable = Step(
        "conformance, portable kernels",
        (*fuzz, "conformance", "blocksparse", "--device", device, "--json"),
        f"{out}/portable_{place}.json",
    )
    return [
        *(
            Step(f"kernels{name}", (*fuzz, "compile", *words, "--arch", given.arch, *jobs))
            for name, words in compiled.items()
        ),
        Step("list", (sys.executable, "ci/b200.py", "--write-list", listed, *["--emulated"] * given.emulated)),
        Step(
            "conformance",
            (*fuzz, "conformance", "blocksparse", "--device", device, "--corpus", listed, "--json"),
            files[0],
        ),
        *([] if given.emulated else [portable]),
        Step(
            "session",
            (
                *(*fuzz, "run", *session, *jobs, *ledger, *repeats),
                *("--no-minimize", "--output-dir", f"{out}/session", "--corpus", f"{out}/regressions"),
            ),
        ),
        *(
            Step(
                f"session, {name}",
                (
                    *(*fuzz, "run", *sessions[f", {name}"], *jobs, *ledger, *repeats, "--no-minimize"),
                    *("--output-dir", f"{out}/{folder}", "--corpus", f"{out}/regressions"),
                ),
            )
            for name, (_, folder) in FURTHER.items()
        ),
        Step(
            "speed",
            (sys.executable, "ci/benchmarks/blackwell_speed.py", "--out", speed, *["--emulated"] * given.emulated),
        ),
        Step("ledger: conformance and speed", (sys.executable, "-m", "ci.measurements", *files, *ledger)),
        Step("ledger: one file", (*fuzz, "export", f"{out}/b200.jsonl.gz", *ledger)),
    ]


def main() -> int:
    """Runs the plan, or prints it; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="print the commands, and run none")
    parser.add_argument("--emulated", action="store_true", help="on the emulated GPU")
    parser.add_argument("--cases", type=int, default=5000, help="of the session (5000)")
    parser.add_argument("--seed", type=int, default=0, help="of the session (0)")
    parser.add_argument("--jobs", type=int, default=0, help="processes at a time (as attnfuzz run)")
    parser.add_argument("--arch", default="sm_100a", help="sm_103a for a B300 (sm_100a)")
    parser.add_argument("--out", default="b200", help="folder of all results (b200)")
    parser.add_argument("--write-list", metavar="DIR", help="write the list of published configurations, and end")
    given = parser.parse_args()
    if given.write_list:
        write_list(Path(given.write_list), most_pairs=SMALL if given.emulated else 1 << 62)
        return 0
    steps = plan(given)
    if given.dry_run:
        for step in steps:
            into = f" > {shlex.quote(step.into)}" if step.into else ""
            print(f"# {step.name}\n{shlex.join(('python', *step.command[1:]))}{into}")
        return 0
    if not given.emulated and (why := unfit()):
        print(f"b200: {why}", file=sys.stderr)
        return 2
    Path(given.out).mkdir(parents=True, exist_ok=True)
    codes = {step.name: run(step) for step in steps}
    print(json.dumps(codes, indent=1))
    broken = [step.name for step in steps if codes[step.name] not in (0, *step.found)]
    for name in broken:
        print(f"b200: {name} could not run", file=sys.stderr)
    return 2 if broken else int(any(codes.values()))


def write_list(folder: Path, most_pairs: int) -> None:
    """The published configurations of attention that any target should pass, with products="tcgen05". At head dims that
    have no backward kernel by tcgen05, the forward one is run beside the portable backward kernel. most_pairs: of query
    and key, of a configuration."""
    sys.path.insert(0, str(ROOT))
    import msgspec

    from fuzz.corpus.entry import ANY_TARGET
    from fuzz.corpus.store import encode, load_all

    folder.mkdir(parents=True, exist_ok=True)
    for entry in load_all(ROOT / "corpus" / "must_pass"):
        problem = entry.case.problem
        if entry.case.target == ANY_TARGET and problem.op == "attention" and problem.pairs <= most_pairs:
            case = msgspec.structs.replace(entry.case, variant={**entry.case.variant, "products": "tcgen05"})
            (folder / entry.name).write_text(encode(msgspec.structs.replace(entry, case=case)))


def unfit() -> str | None:
    """Reason why this machine's GPU cannot run the plan, or None."""
    import torch

    if not torch.cuda.is_available():
        return "no CUDA GPU is visible to PyTorch; --dry-run prints the plan, --emulated tries it"
    major, minor = torch.cuda.get_device_capability()
    if (major, minor) not in ((10, 0), (10, 3)):
        return f"the GPU has compute capability {major}.{minor}; products by tcgen05 need 10.0 or 10.3"
    return None


def run(step: Step) -> int:
    """A step's exit code; its output is shown, or in its file."""
    print(f"::: {step.name}", flush=True)
    began = time.monotonic()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    if step.into:
        with open(step.into, "w") as file:
            code = subprocess.run(step.command, cwd=ROOT, env=environment, stdout=file, check=False).returncode
    else:
        code = subprocess.run(step.command, cwd=ROOT, env=environment, check=False).returncode
    print(f"::: {step.name}: exit code {code}, {time.monotonic() - began:.0f} s", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
