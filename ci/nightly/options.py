"""The options of a night, and what the machine has."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence

import msgspec

ROOT = ".attnfuzz/nightly"
ARCHS = ("sm_90a", "sm_100a")  # where no GPU says otherwise
TEST_MINUTES = 30.0
CONFORMANCE = ("torch.sdpa.math",)


class Options(msgspec.Struct, frozen=True):
    """Options of a night; kept with its state, so that a night that goes on does the same.

    cases    of all sessions; minutes: of all sessions (0: no limit)
    test_minutes  after which no further test begins (0: no limit)
    devices  'host', 'emulator', 'cuda:N'; archs: to compile for
    targets  to fuzz, by name; none: every one that runs here. files: target files
    """

    cases: int = 20000
    minutes: float = 0.0
    test_minutes: float = TEST_MINUTES
    devices: tuple[str, ...] = ("host",)
    archs: tuple[str, ...] = ARCHS
    targets: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    conformance: tuple[str, ...] = CONFORMANCE
    ledger: str = ".attnfuzz/ledger.sqlite"
    site: str = ".attnfuzz/site"
    jobs: str = "auto"
    pytest_args: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()


class Asked(msgspec.Struct, frozen=True):
    """The command line."""

    options: Options
    root: str
    dry_run: bool
    new: bool
    seed: int | None


def parse(arguments: Sequence[str] | None, stages: Sequence[str]) -> Asked:
    """The command line; what is not given follows from the machine."""
    parser = argparse.ArgumentParser(
        prog="ci/nightly.sh",
        description=f"One night: {', '.join(stages)}. A night that was cut off goes on.",
        epilog="exit codes: 0 nothing new, 1 a new or regressed signature or a check that failed, 3 a stage broke",
    )
    add, default = parser.add_argument, Options()
    add("--dry-run", action="store_true", help="print the plan, with estimated minutes, and end")
    add("--cases", type=int, default=default.cases, metavar="N", help=f"of all sessions ({default.cases})")
    add("--max-minutes", type=float, default=0.0, metavar="M", help="of all sessions together (no limit)")
    test_help = f"of the tests; what did not begin comes first in the next night; 0: no limit ({TEST_MINUTES:g})"
    add("--test-minutes", type=float, default=TEST_MINUTES, metavar="M", help=test_help)
    add("--device", action="append", metavar="DEVICE", help="host, emulator, cuda:N (every GPU, and host)")
    add("--arch", action="append", metavar="ARCH", help="to compile for (those of the GPUs, else sm_90a and sm_100a)")
    add("--target", action="append", metavar="NAME", help="to fuzz (every one that runs here)")
    add("--target-file", action="append", default=[], metavar="FILE", help="with targets of your own; may be repeated")
    add("--conformance", action="append", metavar="TARGET", help=f"({', '.join(CONFORMANCE)})")
    add("--skip", action="append", choices=stages, default=[], help="leave out a stage; may be repeated")
    add("--ledger", default=os.environ.get("ATTNFUZZ_LEDGER") or default.ledger, metavar="URL", help="file or URL")
    add("--site", default=default.site, metavar="DIR", help=f"where the report goes ({default.site})")
    add("--jobs", default="auto", metavar="N", help="processes at a time (auto)")
    add("--pytest-args", default="", metavar="ARGS", help="more options for the tests, as one word")
    add("--seed", type=int, metavar="S", help="of the first session (from the date)")
    add("--new", action="store_true", help="begin a new night though the last one was cut off")
    add("--root", default=ROOT, metavar="DIR", help=f"folder of all nights ({ROOT})")
    given = parser.parse_args(arguments)
    gpus = gpu_archs()
    options = Options(
        cases=given.cases,
        minutes=given.max_minutes,
        test_minutes=given.test_minutes,
        devices=tuple(given.device or (*(f"cuda:{number}" for number in range(len(gpus))), "host")),
        archs=tuple(given.arch or dict.fromkeys(gpus) or ARCHS),
        targets=tuple(given.target or ()),
        files=tuple(os.path.abspath(file) for file in given.target_file),
        conformance=tuple(given.conformance or CONFORMANCE),
        ledger=given.ledger,
        site=given.site,
        jobs=given.jobs,
        pytest_args=tuple(given.pytest_args.split()),
        skip=tuple(given.skip),
    )
    return Asked(options, given.root, given.dry_run, given.new, given.seed)


def gpu_archs() -> list[str]:
    """The architecture of every GPU, as 'sm_90a'."""
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [f"sm_{one.replace('.', '')}" + "a" * (float(one) >= 9) for one in said.split()]


def attnfuzz(*arguments: str) -> list[str]:
    """A command of this checkout."""
    return [sys.executable, "-m", "fuzz.cli", *arguments]


def target_files(options: Options) -> list[str]:
    """The options of a command for target files."""
    return [part for file in options.files for part in ("--target-file", file)]


def pytest(*arguments: str) -> list[str]:
    """A run of pytest with this interpreter."""
    return [sys.executable, "-m", "pytest", *arguments]
