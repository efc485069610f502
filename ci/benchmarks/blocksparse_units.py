"""Which unit of a Hopper GPU bounds each row of blocksparse_beside.py: counters of ncu, ours and FlashAttention-4's.

    python ci/benchmarks/blocksparse_units.py --out ci/results/blocksparse_units_h200.json
    python ci/benchmarks/blocksparse_units.py --read FILE.csv        the rows of a file that ncu wrote

One process under ncu runs every row's forward pass and atomic backward pass once, after a first call that is not
counted; a kernel of torch.cuda._sleep stands before each pass, so that the kernels after it are that pass's. Of a
pass's kernels the longest is counted in full. Its clock is the one that the GPU chooses.

Units, percent of what each can do while an SM has a CTA; of the whole time for shared memory, L2 and DRAM:

    tensor    cycles in which the tensor cores multiply
    shared    wavefronts of loads, stores and reductions of shared memory; wgmma's own reads are not among them
    exponentials    instructions of the XU pipe
    issue     cycles in which a scheduler issues
    l1, l2, memory    the busiest part of each
    active    share of the time in which an SM has a CTA; the rest is the launch and the tail

'stalls' are cycles that a warp waits for each reason, of those of an issued instruction.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

import torch  # noqa: E402
from blocksparse_beside import ours, planned, versions  # noqa: E402
from blocksparse_entry import connected  # noqa: E402
from blocksparse_masks import Entry, blocks_of, operands  # noqa: E402
from blocksparse_others import Problem, others  # noqa: E402
from blocksparse_speed import build_ahead  # noqa: E402

from kernels.blocksparse.spec.variant import WIDEST_DIM  # noqa: E402

UNITS = {
    "tensor": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "shared": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum.pct_of_peak_sustained_elapsed",
    "exponentials": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
    "issue": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "l1": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "l2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "memory": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
}
ACTIVE, TIME, CLOCK = (
    "sm__cycles_active.avg.pct_of_peak_sustained_elapsed",
    "gpu__time_duration.sum",
    "smsp__cycles_elapsed.avg.per_second",
)
REASONS = (
    *("barrier", "branch_resolving", "dispatch_stall", "gmma", "lg_throttle", "long_scoreboard", "math_pipe_throttle"),
    *("membar", "mio_throttle", "no_instruction", "not_selected", "selected", "short_scoreboard", "sleeping", "wait"),
)
STALLS = {reason: f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio" for reason in REASONS}
COUNTED = ("ours", "FlashAttention-4")
MARK = "spin_kernel"  # torch.cuda._sleep's
SECONDS = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3, "second": 1e6, "msecond": 1e3, "usecond": 1.0, "nsecond": 1e-3}


def passes(entries: list[Entry]) -> Iterator[tuple[str, Any]]:
    """(label, call) of each pass; the caller runs a call twice and counts the second time."""
    for entry in entries:
        problem = Problem(entry, blocks_of(entry, wide=entry.dim <= WIDEST_DIM), *operands(entry))
        ways = ours(problem) | (others(problem) if entry.device == "cuda" else {})
        for name in COUNTED:
            if name not in ways:
                continue
            call, leaves, do = ways[name]
            try:
                out = call()
                gradient = partial(torch.autograd.grad, out, leaves or (), do, retain_graph=True)
                gradient()
            except Exception as error:  # what one of them refuses
                print(f"{entry.name}, {name}: {type(error).__name__}: {error}"[:200], file=sys.stderr)
                continue
            label = f"{entry.name.removeprefix('beside ')} | {name}"
            yield f"{label} | forward", call
            yield f"{label} | backward", gradient


def run_counted(entries: list[Entry], labels: Path, seconds: float) -> None:
    """In the process under ncu: every pass, a mark before each, until seconds are over, so that ncu, which prints when
    the process ends, has what was counted; labels: one line a pass."""
    until = time.monotonic() + seconds
    cuda = entries[0].device == "cuda"
    with connected(entries[0]), labels.open("w") as file:
        for label, call in passes(entries):
            if time.monotonic() > until:
                return
            if cuda:
                torch.cuda.synchronize()
                torch.cuda.profiler.start()
                torch.cuda._sleep(1000)
            call()
            if cuda:
                torch.cuda.synchronize()
                torch.cuda.profiler.stop()
            print(label, file=file, flush=True)
            print(label, file=sys.stderr, flush=True)


def launches(text: str) -> list[dict[str, str]]:
    """Rows of ncu's `--csv --page raw`: one a kernel, by column; times in microseconds."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(lines))
    if not rows:
        return []
    unit = rows[0]  # the line under the header
    scale = SECONDS.get(unit.get(TIME, ""), 1.0)
    return [{**row, TIME: str(number(row.get(TIME, "0")) * scale)} for row in rows[1:]]


def number(text: str) -> float:
    """A number as ncu writes it; not a number where it has none."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return float("nan")


def pass_rows(text: str, labels: list[str]) -> list[dict[str, Any]]:
    """One row a pass: its kernels' times, and the counters of the longest one."""
    groups: list[list[dict[str, str]]] = []
    for launch in launches(text):
        if MARK in launch["Kernel Name"]:
            groups.append([])
        elif groups:
            groups[-1].append(launch)
    found = []
    for label, group in zip(labels, groups, strict=False):
        if not group:
            continue
        problem, name, way = label.split(" | ")
        longest = max(group, key=lambda launch: number(launch[TIME]))
        stalls = {reason: number(longest.get(column, "")) for reason, column in STALLS.items()}
        total = sum(value for value in stalls.values() if value == value)
        shares = {reason: round(value / total, 3) for reason, value in stalls.items() if value > 0.02 * total}
        units = {unit: round(number(longest.get(column, "")), 1) for unit, column in UNITS.items()}
        row = {"problem": problem, "name": name, "pass": way, "us": round(number(longest[TIME]), 1)}
        row |= {"all_us": round(sum(number(launch[TIME]) for launch in group), 1), "units": units}
        row["active"] = round(number(longest.get(ACTIVE, "")), 1)
        row["stalls"] = dict(sorted(shares.items(), key=lambda one: -one[1]))
        found.append(row)
    return found


def as_line(row: dict[str, Any]) -> str:
    """A row as one line of text."""
    units = sorted(row["units"].items(), key=lambda one: -one[1])[:4]
    parts = ", ".join(f"{unit} {share:.0f} %" for unit, share in units)
    stalls = ", ".join(f"{reason} {share:.2f}" for reason, share in list(row["stalls"].items())[:4])
    head = f"{row['problem']}, {row['name']}, {row['pass']}: {row['us']:.0f} of {row['all_us']:.0f} us"
    return f"{head}; {parts}; active {row['active']:.0f} %; {stalls}"


def command(options: argparse.Namespace, labels: Path) -> list[str]:
    """ncu around this script."""
    metrics = [*UNITS.values(), ACTIVE, TIME, CLOCK, *STALLS.values()]
    ncu = ["ncu", "--profile-from-start", "off", "--clock-control", "none", "--csv", "--page", "raw"]
    ncu += ["--kernel-name", f"regex:cutlass|{MARK}", "--metrics", ",".join(metrics)]
    child = [sys.executable, str(Path(__file__)), "--count", str(labels), "--seconds", str(options.seconds)]
    return [*ncu, *child, *(["--only", *options.only] if options.only else [])]


def main() -> int:
    """Counts, prints and writes; 1 where nothing was counted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="rows whose name has one of these")
    parser.add_argument("--seconds", type=float, default=200, help="begin no pass later, under ncu")
    parser.add_argument("--jobs", type=int, default=8, help="processes that compile")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--csv", type=Path, help="where ncu's own table goes")
    parser.add_argument("--read", type=Path, nargs=2, metavar=("CSV", "LABELS"), help="files of an earlier run")
    parser.add_argument("--count", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--dry", action="store_true", help="every pass on the emulated GPU, tiny, without ncu")
    options = parser.parse_args()
    entries = [e for e in planned(options.dry) if not options.only or any(part in e.name for part in options.only)]
    if options.count or options.dry:
        run_counted(entries, options.count or Path(tempfile.mkdtemp()) / "labels", options.seconds)
        return 0
    if options.read:
        text, labels = options.read[0].read_text(), options.read[1].read_text().splitlines()
    else:
        text, labels = counted(options, entries)
    rows = pass_rows(text, labels)
    for row in rows:
        print(as_line(row))
    if options.out and rows:
        from fuzz.session.records import machine

        found: dict[str, Any] = {"what": "units of the GPU that each pass keeps busy, by ncu", "machine": machine()}
        found |= {"versions": versions(), "command": " ".join(sys.argv), "rows": rows}
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if rows else 1


def counted(options: argparse.Namespace, entries: list[Entry]) -> tuple[str, list[str]]:
    """What ncu printed, and the labels of the passes."""
    if shutil.which("ncu") is None:
        raise SystemExit("blocksparse_units.py: ncu is not installed here")
    build_ahead([replace(e, kind="pair") for e in entries if e.dim <= 128], options.jobs).join()
    with tempfile.TemporaryDirectory() as name:
        labels = Path(name) / "labels"
        with (Path(name) / "csv").open("w+") as out:
            try:
                subprocess.run(command(options, labels), stdout=out, timeout=2 * options.seconds, check=False)
            except subprocess.TimeoutExpired:
                print(f"ncu took more than {2 * options.seconds:.0f} s", file=sys.stderr)
            out.seek(0)
            text = out.read()
        if options.csv:
            options.csv.write_text(text)
        return text, labels.read_text().splitlines() if labels.exists() else []


if __name__ == "__main__":
    sys.exit(main())
