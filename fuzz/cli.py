"""attnfuzz on the command line.

Exit codes: 0 all as expected, 1 findings (or a failed check), 2 usage: a bad option, a malformed file, an unknown
target.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

OK, FINDINGS, USAGE = 0, 1, 2
EPILOG = "exit codes: 0 all as expected, 1 findings, 2 usage (a bad option, a malformed file, an unknown target)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Parses the arguments and runs the command; returns the exit code, never a traceback for a user's mistake."""
    from fuzz.case import CaseError
    from fuzz.corpus import CorpusError
    from fuzz.guard import check_packages
    from fuzz.runner import RunnerError
    from fuzz.targets.as_text import ScriptError
    from fuzz.targets.registry import TargetError

    options = _parser().parse_args(arguments)
    try:
        check_packages()
        return options.command(options)
    except (CaseError, CorpusError, ScriptError, TargetError, RunnerError, OSError) as error:
        print(f"attnfuzz: {_one_line(error)}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("attnfuzz: interrupted; what was found so far is saved", file=sys.stderr)
        return 130


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
    parser = _command(sub, "run", _run, "run a fuzz session")
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
    add("--workers", type=_positive, help="processes (one per core; at most 16)")
    add("--seconds", type=float, default=0.0, help="stop drawing after so many seconds")
    add("--corpus", default="corpus/regressions", metavar="DIR", help="known failures, and where new ones are saved")
    add("--folder", default="", metavar="DIR", help="the session's records (.attnfuzz/sessions/<time>)")
    add("--no-minimize", action="store_true", help="save failures as they were drawn")
    _device_options(parser)


def _add_repro(sub) -> None:
    parser = _command(sub, "repro", _repro, "run a saved case and show what is wrong, where")
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
    parser = _command(sub, "minimize", _minimize, "reduce a failing case")
    parser.add_argument("case", metavar="CASE.json", help="a case, or a corpus entry")
    parser.add_argument("--out", metavar="OUT.json", help="where the smallest case goes (CASE.min.json)")
    parser.add_argument("--max-runs", type=_positive, default=120, help="runs at most (120)")
    parser.add_argument("--max-seconds", type=float, help="seconds at most")
    _device_options(parser)


def _add_conformance(sub) -> None:
    parser = _command(sub, "conformance", _conformance, "the matrix of published configurations for a target")
    parser.add_argument("target", metavar="TARGET")
    parser.add_argument("--corpus", default="corpus/must_pass", metavar="DIR", help="the list (corpus/must_pass)")
    parser.add_argument("--all", action="store_true", help="large configurations too (minutes on a CPU)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    _device_options(parser)


def _add_compile(sub) -> None:
    from fuzz.compiling.build import ARCHS

    parser = _command(sub, "compile", _compile, "compile what a session will run; needs no GPU")
    add = parser.add_argument
    add("--arch", action="append", choices=ARCHS, metavar="ARCH", help=f"{', '.join(ARCHS)}; may be repeated (sm_100a)")
    add("--cases", type=_positive, default=300, help="cases of the session, over all targets (300)")
    add("--seed", type=int, default=0, help="seed of the session (0)")
    add("--size", choices=("small", "medium", "large"), default="medium", help="sizes of the cases (medium)")
    add("--target", action="append", default=[], metavar="NAME", help="the session's targets (all of the device)")
    add("--device", choices=("host", "cuda"), default="cuda", help="where the session will run (cuda)")
    add("--jobs", type=_jobs, default="auto", metavar="N", help="workers (auto: one per core, at most 16)")
    add("--limit", type=_seconds, default=120.0, metavar="SECONDS", help="one kernel may take so long (120)")
    add("--cache", metavar="DIR", help="where artifacts lie ($ATTNFUZZ_CACHE, or ~/.cache/attnfuzz)")
    add("--target-file", action="append", default=[], metavar="FILE", help="a Python file with targets of your own")


def _add_score(sub) -> None:
    from fuzz.score.command import SUMMARY, add_options

    add_options(_command(sub, "score", _score, SUMMARY))


def _add_targets(sub) -> None:
    parser = _command(sub, "targets", _targets, "what each target supports and refuses, and why, on this machine")
    _device_options(parser)


def _add_doctor(sub) -> None:
    _command(sub, "doctor", _doctor, "GPU, driver, toolchain: what is missing, and the command that mends it")


def _add_schema(sub) -> None:
    _command(sub, "schema", _schema, "print the JSON Schema of a case")


def _run(options: argparse.Namespace) -> int:
    from fuzz.pool import run_session
    from fuzz.session import Settings

    wanted = Settings(
        targets=tuple(options.target),
        device=_device(options),
        cases=options.cases,
        seed=options.seed,
        size=options.size,
        repeats=options.repeats,
        files=_files(options),
        corpus=options.corpus,
        folder=options.folder,
        minimize_runs=0 if options.no_minimize else 60,
        seconds=options.seconds,
    )
    new = run_session(wanted, options.workers, _console())
    return FINDINGS if new else OK


def _repro(options: argparse.Namespace) -> int:
    from fuzz.case import to_json
    from fuzz.corpus import load_case
    from fuzz.runner import Runner
    from fuzz.timeline import place, told
    from fuzz.view import rate, show

    console = _console()
    case = load_case(options.case)
    target = _load(case.target, options)
    if (why := target.missing()) is not None:
        raise _usage(f"{case.target} cannot run here: {why}")
    if options.sanitizer:
        verdicts = [_sanitized(case, target, options)]
    else:
        trace = place(target, options.trace)
        with Runner(_runner_device(options), files=_files(options)) as runner:
            verdicts = [runner.run(case, trace) for _ in range(options.times)]
    verdict = next((v for v in verdicts if v.bad), verdicts[0])
    if options.json:
        print(to_json(verdict), end="")
    else:
        show(case, verdict, console)
        if options.times > 1:
            console.print(rate(verdicts))
    if options.script:
        from fuzz.script import write_script

        Path(options.script).write_text(write_script(case, target, verdict))
        print(f"script: {options.script}", file=sys.stderr)
    if options.trace:
        print(told(Path(options.trace)), file=sys.stderr)
    return FINDINGS if verdict.bad else OK


def _sanitized(case, target, options: argparse.Namespace):
    from fuzz.sanitizer import SanitizerError, sanitize

    if target.device != "cuda":
        raise _usage(f"--sanitizer looks at GPU kernels: {target.name} runs on {target.device} (--device cuda)")
    try:
        return sanitize(case, options.sanitizer, files=_files(options), kernels=getattr(target, "kernel_names", ""))
    except SanitizerError as error:
        raise _usage(str(error)) from error


def _minimize(options: argparse.Namespace) -> int:
    from fuzz.case import to_json
    from fuzz.corpus import load_case
    from fuzz.minimize import minimize
    from fuzz.runner import Runner
    from fuzz.targets.target import refusal
    from fuzz.verdict import summary
    from fuzz.view import describe

    case = load_case(options.case)
    target = _load(case.target, options)
    out = Path(options.out or Path(options.case).with_suffix(".min.json"))
    with Runner(_runner_device(options), files=_files(options)) as runner:
        found = minimize(
            case,
            runner.run,
            max_runs=options.max_runs,
            max_seconds=options.max_seconds,
            allowed=lambda candidate: refusal(target, candidate) is None,
            progress=lambda step: print(f"  {step}", file=sys.stderr),
        )
    if not found.verdict.bad:
        print(
            f"attnfuzz: {options.case}: does not fail here ({summary(found.verdict)}), nothing to minimise",
            file=sys.stderr,
        )
        return OK
    out.write_text(to_json(found.case))
    print("\n".join(describe(found.case)))
    print(summary(found.verdict))
    print(found.report())
    print(f"attnfuzz repro {out}")
    return FINDINGS


def _conformance(options: argparse.Namespace) -> int:
    from fuzz.conformance import conformance
    from fuzz.corpus import load_all
    from fuzz.runner import Runner

    target = _load(options.target, options)
    if (why := target.missing()) is not None:
        raise _usage(f"{target.name} cannot run here: {why}")
    entries = load_all(Path(options.corpus))
    with Runner(_runner_device(options), files=_files(options)) as runner:
        matrix = conformance(target, entries, runner.run, everything=options.all or _device(options) == "cuda")
    print(matrix.to_json() if options.json else matrix.render(), end="")
    return OK if matrix.ok else FINDINGS


def _compile(options: argparse.Namespace) -> int:
    from fuzz.compiling import Build, Cache, Pool
    from fuzz.compiling.command import compile_all
    from fuzz.compiling.plan import plan
    from fuzz.session import Settings

    wanted = Settings(
        targets=tuple(options.target),
        device=options.device,
        cases=options.cases,
        seed=options.seed,
        size=options.size,
        files=_files(options),
    )
    console = _console()
    builds: list[Build] = []
    for arch in dict.fromkeys(options.arch or ["sm_100a"]):
        planned = plan(wanted, arch)
        drawn = ", ".join(f"{count} of {name}" for name, count in planned.cases.items()) or "none that compile ahead"
        console.print(
            f"{arch}: {len(planned.builds)} keys for the cases of seed {wanted.seed}: {drawn}", highlight=False
        )
        builds += planned.builds
    with Pool(Cache(options.cache), options.jobs, options.limit) as pool:
        ended = compile_all(pool, builds, console)
    return FINDINGS if any(one.status == "failed" for one in ended) else OK


def _score(options: argparse.Namespace) -> int:
    from fuzz.score.command import score

    try:
        return score(options, _console())
    except ValueError as error:
        raise _usage(str(error)) from error


def _targets(options: argparse.Namespace) -> int:
    from fuzz.targets.registry import targets
    from fuzz.targets.target import limits

    console = _console()
    for name, target in targets(_files(options), _device(options), planted=True).items():
        why = target.missing()
        state = "[green]runs here[/]" if why is None else f"[yellow]cannot run here: {why}[/]"
        console.print(f"[bold]{name}[/] ({target.device}): {target.summary}. {state}", highlight=False)
        if "!" not in name:
            if not target.deterministic:
                console.print("    declared nondeterministic: repeats may differ", highlight=False, markup=False)
            for line in limits(target):
                console.print(f"    does not take: {line}", highlight=False, markup=False)
    return OK


def _doctor(options: argparse.Namespace) -> int:
    from fuzz.doctor import checks, render

    found = checks()
    print(render(found), end="")
    return FINDINGS if any(check.status == "missing" for check in found) else OK


def _schema(options: argparse.Namespace) -> int:
    import json

    from fuzz.case import schema

    print(json.dumps(schema(), indent=2))
    return OK


def _console() -> Console:
    return Console() if sys.stdout.isatty() else Console(width=120)


def _device(options: argparse.Namespace):
    from fuzz.targets.base import default_device

    return options.device or default_device()


def _runner_device(options: argparse.Namespace) -> str:
    return "cuda:0" if _device(options) == "cuda" else "host"


def _files(options: argparse.Namespace) -> tuple[str, ...]:
    return tuple(str(Path(file).resolve()) for file in options.target_file)


def _load(name: str, options: argparse.Namespace):
    from fuzz.targets.registry import load

    return load(name, _files(options), _device(options))


def _usage(message: str) -> Exception:
    from fuzz.targets.registry import TargetError

    return TargetError(message)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def _jobs(text: str) -> int:
    from fuzz.compiling.pool import auto_jobs

    return auto_jobs() if text == "auto" else _positive(text)


def _seconds(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, got {value}")
    return value


def _one_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
