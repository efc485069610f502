"""Runs a benchmark whose rows are compiled in processes of their own, side by side, and then measured in this one."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from blocksparse_entry import connected
from blocksparse_masks import Entry

DISAGREE = 0.02
Row = TypeVar("Row")


@dataclass(frozen=True)
class Benchmark(Generic[Row]):
    """A benchmark: its rows, and how each is compiled, measured and printed.

    doc         its help
    planned     all rows, the most important first; True for tiny ones on the emulated GPU
    name        of a row
    to_compile  the rows that together need all kernels
    warm        compiles what a row needs, in a process of its own; its name
    measure     a row's result: "row", its name, and "difference", how far results of two ways are apart, are read here
    as_line     a result, for the table
    """

    doc: str
    planned: Callable[[bool], list[Row]]
    name: Callable[[Row], str]
    to_compile: Callable[[list[Row]], list[Row]]
    warm: Callable[[Row], str]
    measure: Callable[[Row], dict[str, Any]]
    as_line: Callable[[dict[str, Any]], str]


def run(benchmark: Benchmark[Row]) -> int:
    """Runs everything; 1 where results of two ways of a row differ by more than DISAGREE."""
    parser = argparse.ArgumentParser(description=benchmark.doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=150, help="in all; rows that are left then are left out")
    parser.add_argument("--jobs", type=int, default=max(1, min(8, (os.cpu_count() or 2) - 3)))
    parser.add_argument("--only", nargs="*", help="rows whose name has one of these")
    parser.add_argument("--dry", action="store_true", help="on the emulated GPU, tiny")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    from blocksparse_beside import versions

    from fuzz.session.records import machine

    until = time.monotonic() + options.seconds
    rows = benchmark.planned(options.dry)
    rows = [row for row in rows if not options.only or any(part in benchmark.name(row) for part in options.only)]
    found: dict[str, Any] = {
        "machine": machine(), "versions": versions(), "command": " ".join(sys.argv), "rows": [], "left_out": [],
    }  # fmt: skip
    if not options.dry:
        with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
            for name in pool.map(benchmark.warm, benchmark.to_compile(rows)):
                print("compiled", name, flush=True)
    with connected(device_entry("emulator" if options.dry else "cuda")):
        for row in rows:
            if time.monotonic() > until:
                found["left_out"].append(benchmark.name(row))
                continue
            found["rows"].append(benchmark.measure(row))
            print(benchmark.as_line(found["rows"][-1]), flush=True)
            if options.out:
                options.out.write_text(json.dumps(found, indent=1) + "\n")
    wrong = [row["row"] for row in found["rows"] if any(x > DISAGREE for x in row["difference"].values())]
    print(f"{len(found['rows'])} rows, wrong: {wrong}, left out: {found['left_out']}")
    return 1 if wrong else 0


def device_entry(device: str) -> Entry:
    """An entry of a device, which `connected` asks for no more."""
    return Entry("beside", "causal", 1024, 64, 1, 1, device)
