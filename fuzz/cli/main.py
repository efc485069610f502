"""attnfuzz on the command line.

Exit codes: 0 all as expected, 1 findings (or a failed check), 2 usage: a bad option, a malformed file, an unknown
target.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from fuzz.cli import commands
from fuzz.cli.commands import USAGE
from fuzz.process.signals import held

WHERE = "where artifacts lie ($ATTNFUZZ_CACHE, or ~/.cache/attnfuzz), up to $ATTNFUZZ_CACHE_GIB GiB of them (4)"
EPILOG = "exit codes: 0 all as expected, 1 findings, 2 usage (a bad option, a malformed file, an unknown target)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Parses the arguments and runs the command; returns the exit code, never a traceback for a user's mistake or for
    Ctrl-C, which may come while modules are imported."""
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        print("attnfuzz: interrupted; what was found so far is saved", file=sys.stderr)
        return 130


def _run(arguments: Sequence[str] | None) -> int:
    with held():  # torch is among them, whose modules may swallow a KeyboardInterrupt
        from fuzz.compiling.cache import CacheError
        from fuzz.core.case import CaseError
        from fuzz.core.import_check import check_packages
        from fuzz.core.script_call import ScriptError
        from fuzz.corpus.entry import CorpusError
        from fuzz.runner import HarnessError, RunnerError
        from fuzz.targets.registry import TargetError

        parser = _parser()
    options = parser.parse_args(arguments)
    try:
        check_packages()
        return options.command(options)
    except HarnessError as error:  # a bug of ours: the traceback is what a report of it needs
        print(f"attnfuzz: {error}", file=sys.stderr)
        return USAGE
    except (CacheError, CaseError, CorpusError, ScriptError, TargetError, RunnerError, OSError) as error:
        print(f"attnfuzz: {_one_line(error)}", file=sys.stderr)
        return USAGE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="attnfuzz", description=__doc__.split("\n")[0] if __doc__ else "", epilog=EPILOG
    )
    sub = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_run(sub)
    _add_repro(sub)
    _add_minimize(sub)
    _add_conformance(sub)
    _add_compile(sub)
    _add_score(sub)
    _add_targets(sub)
    _add_doctor(sub)
    _add_schema(sub)
    return parser


def _command(sub, name: str, action: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
    parser = sub.add_parser(name, help=text, description=text, epilog=EPILOG)
    parser.set_defaults(command=action)
    return parser


def _device_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", choices=("host", "cuda"), help="where kernels run (cuda where there is a GPU, else host)"
    )
    parser.add_argument(
        "--target-file", action="append", default=[], metavar="FILE", help="a Python file with targets of your own"
    )


def _add_run(sub) -> None:
    parser = _command(sub, "run", commands.run, "run a fuzz session")
    add = parser.add_argument
    add(
        "--target",
        action="append",
        default=[],
        metavar="NAME",
        help="a target; may be repeated (all that can run here)",
    )
    add("--cases", type=_positive, default=300, help="cases of the session, over all targets (300)")
    add("--seed", type=int, default=0, help="the same seed draws the same cases (0)")
    add("--size", choices=("small", "medium", "large"), default="medium", help="sizes of the cases (medium)")
    add("--repeats", type=_positive, default=3, help="runs of each case that must agree bit for bit (3)")
    add(
        "--repeats-deterministic",
        type=_positive,
        default=0,
        metavar="R",
        help="of cases that promise the same bits (3)",
    )
    add("--workers", type=_positive, help="processes (one per core; at most 16)")
    add("--seconds", type=float, default=0.0, help="stop drawing after so many seconds")
    add("--corpus", default="corpus/regressions", metavar="DIR", help="known failures, and where new ones are saved")
    add("--folder", default="", metavar="DIR", help="the session's records (.attnfuzz/sessions/<time>)")
    add("--no-minimize", action="store_true", help="save failures as they were drawn")
    _device_options(parser)


def _add_repro(sub) -> None:
    parser = _command(sub, "repro", commands.repro, "run a saved case and show what is wrong, where")
    parser.add_argument("case", metavar="CASE.json", help="a case, or a corpus entry")
    parser.add_argument("--script", metavar="OUT.py", help="write a self-contained script for a bug report")
    parser.add_argument("--times", type=_positive, default=1, metavar="N", help="run it N times and report k of n")
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")
    parser.add_argument(
        "--trace",
        metavar="OUT.json",
        help="write a timeline of the emulated GPU, for Perfetto, and a picture of it, OUT.svg: who waited for what",
    )
    parser.add_argument(
        "--sanitizer",
        choices=("memcheck", "racecheck", "initcheck", "synccheck"),
        help="run it once under NVIDIA's compute-sanitizer, and show what that finds (needs a GPU)",
    )
    _device_options(parser)


def _add_minimize(sub) -> None:
    parser = _command(sub, "minimize", commands.minimize, "reduce a failing case")
    parser.add_argument("case", metavar="CASE.json", help="a case, or a corpus entry")
    parser.add_argument("--out", metavar="OUT.json", help="where the smallest case goes (CASE.min.json)")
    parser.add_argument("--max-runs", type=_positive, default=120, help="runs at most (120)")
    parser.add_argument("--max-seconds", type=_seconds, help="seconds at most")
    _device_options(parser)


def _add_conformance(sub) -> None:
    parser = _command(sub, "conformance", commands.conformance, "the matrix of published configurations for a target")
    parser.add_argument("target", metavar="TARGET")
    parser.add_argument("--corpus", default="corpus/must_pass", metavar="DIR", help="the list (corpus/must_pass)")
    parser.add_argument("--all", action="store_true", help="large configurations too (minutes on a CPU)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    _device_options(parser)


def _add_compile(sub) -> None:
    from fuzz.compiling.build_key import ARCHS

    parser = _command(sub, "compile", commands.compile_ahead, "compile what a session will run; needs no GPU")
    add = parser.add_argument
    add("--arch", action="append", choices=ARCHS, metavar="ARCH", help=f"{', '.join(ARCHS)}; may be repeated (sm_100a)")
    add("--cases", type=_positive, default=300, help="cases of the session, over all targets (300)")
    add("--seed", type=int, default=0, help="seed of the session (0)")
    add("--size", choices=("small", "medium", "large"), default="medium", help="sizes of the cases (medium)")
    add("--target", action="append", default=[], metavar="NAME", help="the session's targets (all of the device)")
    add("--device", choices=("host", "cuda"), default="cuda", help="where the session will run (cuda)")
    add("--jobs", type=_jobs, default="auto", metavar="N", help="workers (auto: one per core, at most 16)")
    add("--limit", type=_seconds, default=120.0, metavar="SECONDS", help="one kernel may take so long (120)")
    add("--cache", metavar="DIR", help=WHERE)
    add("--target-file", action="append", default=[], metavar="FILE", help="a Python file with targets of your own")


def _add_score(sub) -> None:
    from fuzz.score.command import SUMMARY, add_options

    add_options(_command(sub, "score", commands.score, SUMMARY))


def _add_targets(sub) -> None:
    parser = _command(
        sub, "targets", commands.targets, "what each target supports and refuses, and why, on this machine"
    )
    _device_options(parser)


def _add_doctor(sub) -> None:
    _command(sub, "doctor", commands.doctor, "GPU, driver, toolchain: what is missing, and the command that mends it")


def _add_schema(sub) -> None:
    _command(sub, "schema", commands.schema, "print the JSON Schema of a case")


def _positive(text: str, what: str = "a whole number") -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be {what}, got {text!r}") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def _jobs(text: str) -> int:
    from fuzz.compiling.pool import auto_jobs

    return auto_jobs() if text == "auto" else _positive(text, "a number of workers, or auto")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, got {text}")
    return value


def _one_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
