"""The options of every command of `attnfuzz`; what a command does with them stands in commands.py.

One spelling for one thing: `--jobs` are processes, `--max-time` seconds of a whole command, `--output-dir` the folder
of what it records, `--target` may be repeated. The options of a session are those of `pytest fuzz`, and come from
fuzz/session/settings.py.
"""

from __future__ import annotations

import argparse
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import shtab

from fuzz.cli import bisect, commands, corpus, fleet, ledger_parsers
from fuzz.cli.command import command as _command
from fuzz.cli.command import every
from fuzz.cli.exit_codes import SUMMARY
from fuzz.cli.report import add_report
from fuzz.devices.emulator.config import ALL_CHECKS, ARCHES, AS_WRITTEN, BLOCK_CHECKS, CONTRACTIONS, WARP_SCHEDULES
from fuzz.ledger import place
from fuzz.session import settings

WHERE = "where artifacts lie ($ATTNFUZZ_CACHE, or ~/.cache/attnfuzz), up to $ATTNFUZZ_CACHE_GIB GiB of them (4)"
_COMPLETED = {  # by metavar: what a shell offers
    "DIR": shtab.DIRECTORY,
    **dict.fromkeys(
        (
            "FILE",
            "CASE.json",
            "OUT.json",
            "OUT.jsonl",
            "OUT.py",
            "FILE.json",
            "FILE.svg",
            "OUT.xml",
            "SCRIPT.py",
            "PATH",
        ),
        shtab.FILE,
    ),
}


def parser() -> argparse.ArgumentParser:
    """The command line's parser; each command is in `options.command`, a function of the parsed options."""
    made = argparse.ArgumentParser(
        prog="attnfuzz",
        description="Fuzzing and conformance of GPU attention kernels.",
        epilog=SUMMARY,
        allow_abbrev=False,
    )
    made.add_argument("--version", action="version", version=f"attnfuzz {_version()}")
    sub = made.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in (
        _run,
        fleet.add,
        _show,
        _repro,
        _minimize,
        bisect.add,
        corpus.add,
        _conformance,
        _compile,
        _mutation_score,
        _targets,
        _sanitize,
        *ledger_parsers.COMMANDS,
        add_report,
        _doctor,
        _schema,
        _completion,
    ):
        add(sub)
    for command in every(sub):
        for action in command._actions:
            if isinstance(action.metavar, str) and action.metavar in _COMPLETED:
                vars(action)["complete"] = _COMPLETED[action.metavar]  # what shtab reads
    return made


def _device_options(command: argparse.ArgumentParser) -> None:
    settings.add_options(command.add_argument, only=("device", "target-file"))


def _jobs_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--jobs", type=_jobs, default="auto", metavar="N", help="processes at a time (auto: one per core, at most 16)"
    )


def _run(sub: Any) -> None:
    command = _command(
        sub,
        "run",
        commands.run,
        "run a fuzz session",
        "attnfuzz run --target blocksparse --cases 200 --seed 7",
        "attnfuzz run --target-file my_attention.py --target mine --max-time 600",
        "attnfuzz run --resume .attnfuzz/sessions/20261123-041500-77",
    )
    settings.add_options(command.add_argument)
    command.add_argument(
        "--resume",
        metavar="DIR",
        help="go on with the session of this folder: its settings, and those of its cases that were not run",
    )
    place.add_option(command.add_argument)
    _jobs_option(command)


def _show(sub: Any) -> None:
    command = _command(
        sub,
        "show",
        commands.show,
        "print the table and the findings of a session's folder",
        "attnfuzz show .attnfuzz/sessions/20261123-041500-77",
    )
    command.add_argument("folder", metavar="DIR", help="what `attnfuzz run` printed as records")


def _repro(sub: Any) -> None:
    command = _command(
        sub,
        "repro",
        commands.repro,
        "run a saved case and show what is wrong, where",
        "attnfuzz repro corpus/regressions/CASE.json --script bug.py",
        "attnfuzz repro CASE.json --trace deadlock.json",
    )
    command.add_argument("case", metavar="CASE.json", help="a case, or a corpus entry")
    command.add_argument("--script", metavar="OUT.py", help="write a self-contained script for a bug report")
    command.add_argument(
        "--runs", type=settings.positive, default=1, metavar="N", help="run it N times and report k of n (1)"
    )
    command.add_argument("--json", action="store_true", help="print the verdict as JSON")
    command.add_argument(
        "--trace",
        metavar="OUT.json",
        help="write a timeline of the emulated GPU, for Perfetto, and a picture of it, OUT.svg: who waited for what",
    )
    command.add_argument(
        "--sanitizer",
        choices=("memcheck", "racecheck", "initcheck", "synccheck"),
        help="run it once under NVIDIA's compute-sanitizer, and show what that finds (needs a GPU)",
    )
    _device_options(command)


def _minimize(sub: Any) -> None:
    command = _command(
        sub,
        "minimize",
        commands.minimize,
        "reduce a failing case",
        "attnfuzz minimize CASE.json --out small.json --max-time 120",
    )
    command.add_argument("case", metavar="CASE.json", help="a case, or a corpus entry")
    command.add_argument("--out", metavar="OUT.json", help="where the smallest case goes (CASE.min.json)")
    command.add_argument("--max-runs", type=settings.positive, default=120, metavar="N", help="runs at most (120)")
    command.add_argument("--max-time", type=settings.seconds, metavar="SECONDS", help="seconds at most (no limit)")
    _device_options(command)


def _conformance(sub: Any) -> None:
    command = _command(
        sub,
        "conformance",
        commands.conformance,
        "run the published configurations on a target and show the matrix of results",
        "attnfuzz conformance torch.sdpa.math",
    )
    command.add_argument("target", metavar="TARGET")
    command.add_argument("--corpus", default="corpus/must_pass", metavar="DIR", help="the list (corpus/must_pass)")
    command.add_argument("--all", action="store_true", help="large configurations too (minutes on a CPU)")
    command.add_argument("--json", action="store_true", help="print JSON")
    _device_options(command)


def _compile(sub: Any) -> None:
    from fuzz.compiling.build_key import ARCHS
    from fuzz.compiling.pool import LIMIT

    command = _command(
        sub,
        "compile",
        commands.compile_ahead,
        "compile the kernels that a session will run; needs no GPU",
        "attnfuzz compile --arch sm_100a --target blocksparse --cases 300 --seed 7",
    )
    add = command.add_argument
    add("--arch", action="append", choices=ARCHS, metavar="ARCH", help=f"{', '.join(ARCHS)}; may be repeated (sm_100a)")
    settings.add_options(add, only=("target", "cases", "seed", "size", "target-file"))
    add("--device", choices=("host", "cuda"), default="cuda", help="where the session will run (cuda)")
    _jobs_option(command)
    add(
        "--kernel-timeout",
        type=settings.seconds,
        default=LIMIT,
        metavar="SECONDS",
        help=f"one kernel may take so long ({LIMIT:g})",
    )
    add("--cache", metavar="DIR", help=WHERE)


def _mutation_score(sub: Any) -> None:
    from fuzz.score.command import SUMMARY as summary
    from fuzz.score.command import add_options

    command = _command(
        sub,
        "mutation-score",
        commands.mutation_score,
        summary,
        "attnfuzz mutation-score --check",
        "attnfuzz mutation-score --filter 'blocksparse!rank*' --seeds 3 --plot score.svg",
    )
    add_options(command)
    _jobs_option(command)


def _targets(sub: Any) -> None:
    _device_options(
        _command(
            sub,
            "targets",
            commands.targets,
            "list the targets of this machine, what each one supports and refuses, and why",
            "attnfuzz targets --target-file my_attention.py",
        )
    )


def _sanitize(sub: Any) -> None:
    command = _command(
        sub,
        "sanitize",
        commands.sanitize,
        "run a Python script with its Triton and CUDA C++ kernels on the emulated GPU, and print what is found",
        "attnfuzz sanitize attention.py --batch 2",
        "attnfuzz sanitize --warp-schedule random --seed 3 attention.py",
    )
    command.add_argument("--arch", default="sm_90a", choices=ARCHES, help="compiled for (sm_90a)")
    command.add_argument(
        "--warp-schedule",
        default="in_order",
        choices=WARP_SCHEDULES,
        help="which warp goes on next (in_order)",
    )
    command.add_argument("--seed", type=int, default=1, help="of the random schedule (1)")
    command.add_argument("--resident-ctas", type=_positive, default=4, metavar="N", help="CTAs resident at once (4)")
    command.add_argument(
        "--contraction",
        default=AS_WRITTEN,
        choices=CONTRACTIONS,
        help="fuse the PTX's products with their sums, as its compiler may: of two products the first or the second "
        "one (as_written: none)",
    )
    command.add_argument(
        "--check",
        action="append",
        default=[],
        choices=sorted(ALL_CHECKS - BLOCK_CHECKS),
        help="look for this too, which is not looked for by default",
    )
    command.add_argument("script", metavar="SCRIPT.py", help="takes CPU tensors; TRITON_INTERPRET is unset for it")
    command.add_argument("arguments", nargs=argparse.REMAINDER, metavar="…", help="arguments of the script")


def _doctor(sub: Any) -> None:
    summary = "check GPU, driver and toolchain: what is missing, and the command that installs it"
    _command(sub, "doctor", commands.doctor, summary, "attnfuzz doctor")


def _schema(sub: Any) -> None:
    _command(sub, "schema", commands.schema, "print the JSON Schema of a case", "attnfuzz schema > case.schema.json")


def _completion(sub: Any) -> None:
    command = _command(
        sub,
        "completion",
        _print_completion,
        "print the completion script of a shell",
        "attnfuzz completion bash > ~/.local/share/bash-completion/completions/attnfuzz",
    )
    command.add_argument("shell", choices=shtab.SUPPORTED_SHELLS)


def _print_completion(options: argparse.Namespace) -> int:
    print(shtab.complete(parser(), options.shell))
    return 0


def _jobs(text: str) -> int:
    from fuzz.compiling.pool import auto_jobs

    return auto_jobs() if text == "auto" else settings.positive(text)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _version() -> str:
    try:
        return version("attnfuzz")
    except PackageNotFoundError:  # a checkout that is not installed
        return "unknown"
