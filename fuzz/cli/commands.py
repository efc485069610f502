"""What each command of `attnfuzz` does with its options; how they are given stands in parsers.py.

Every function takes the parsed options and returns an exit code. A user's mistake is raised as one of the errors that
`cli.main` shows in one line.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fuzz.cli.exit_codes import FINDINGS, HARNESS, INTERRUPTED, OK, USAGE

if TYPE_CHECKING:
    from fuzz.runner import Runner
    from fuzz.session.pool import SessionEnd
    from fuzz.session.settings import Settings


def run(options: argparse.Namespace) -> int:
    from fuzz.ledger.ingest.beside import beside
    from fuzz.session.pool import run_session

    settings = session_settings(options)
    ended = run_session(
        settings, options.jobs, make_console(), resume=bool(options.resume), beside=beside(options.ledger)
    )
    return exit_code(ended)


def session_settings(options: argparse.Namespace) -> Settings:
    """Settings of a new session, or of the one that --resume names. Raises SessionError, TargetError."""
    from fuzz.session.resume import read_session
    from fuzz.session.settings import OPTIONS, Settings, from_options

    if not options.resume:
        return from_options(_getter(options))
    given = [f"--{one.name}" for one in OPTIONS if _given(options, one, Settings())]
    if given or options.no_minimize:
        said = ", ".join(given or ["--no-minimize"])
        raise _usage(f"--resume goes on with the settings of its session: leave out {said}")
    return read_session(Path(options.resume)).settings


def exit_code(ended: SessionEnd) -> int:
    """Exit code of a session."""
    if ended.interrupted:
        return INTERRUPTED
    if ended.new:
        return FINDINGS
    if ended.problems:
        return HARNESS
    return USAGE if ended.unusable else OK


def _given(options: argparse.Namespace, option: Any, defaults: Any) -> bool:
    value = getattr(options, option.name.replace("-", "_"))
    return value not in (None, [], getattr(defaults, option.field))


def show(options: argparse.Namespace) -> int:
    from fuzz.session.records import faults_in, notes_in, settlement
    from fuzz.session.resume import read_session
    from fuzz.session.summary.lean import Lean
    from fuzz.session.summary.report import show

    folder, console = Path(options.folder), make_console()
    kept = read_session(folder)
    ended = settlement(folder)
    records = ended.apply(Lean()(kept.reader().new()))
    show(records, None, console, kept.settings.files, kept.settings.device, ended=ended)
    faults = faults_in(folder, kept.session.since)
    machine = faults_in(folder, kept.session.since, machine=True)
    for line in (*faults, *machine, *notes_in(folder)):
        console.print(line, style="bold red", highlight=False, markup=False, soft_wrap=True)
    if len(records) < kept.settings.cases:
        told = f"{len(records)} of {kept.settings.cases} cases; the rest: attnfuzz run --resume {options.folder}"
        console.print(told, highlight=False, markup=False, soft_wrap=True)
    if any(record.counts for record in records):
        return FINDINGS
    return HARNESS if faults else OK


def repro(options: argparse.Namespace) -> int:
    from fuzz.cli.show_case import rate, show
    from fuzz.cli.timeline import place, written
    from fuzz.core.case import to_json
    from fuzz.corpus.store import load_before, load_case

    console = make_console()
    case, before = load_case(options.case), load_before(options.case)
    target = _load(case.target, options)
    if (why := target.missing()) is not None:
        raise _usage(f"{case.target} cannot run here: {why}")
    _check_size(case, target, options)
    if options.script:
        _check_place("--script", Path(options.script))
    if options.sanitizer and (options.runs > 1 or options.trace):
        raise _usage("--sanitizer runs a case once, and leaves no trace: give it without --runs and --trace")
    verdicts = []
    if options.sanitizer:
        verdicts.append(_sanitized(case, target, options))
    else:
        trace = place(target, options.trace)
        with _runner(options) as runner:
            for _ in range(options.runs):
                for one in before:
                    runner.run(one)
                verdicts.append(runner.run(case, trace))
    verdict = next((v for v in verdicts if v.bad), verdicts[0])
    if options.json:
        print(to_json(verdict), end="")
    else:
        show(case, verdict, console)
        if options.runs > 1:
            console.print(rate(verdicts))
    if options.script:
        from fuzz.script import write_script

        Path(options.script).write_text(write_script(case, target, verdict))
        print(f"script: {options.script}", file=sys.stderr)
    if options.trace:
        print(written(Path(options.trace)), file=sys.stderr)
    return FINDINGS if verdict.bad else OK


def _sanitized(case, target, options: argparse.Namespace):
    from fuzz.sanitizer import SanitizerError, sanitize

    if target.device != "cuda":
        raise _usage(f"--sanitizer looks at GPU kernels: {target.name} runs on {target.device} (--device cuda)")
    try:
        return sanitize(case, options.sanitizer, files=_files(options), kernels=target.kernel_names)
    except SanitizerError as error:
        raise _usage(str(error)) from error


def minimize(options: argparse.Namespace) -> int:
    from fuzz.core.case import to_json
    from fuzz.core.case_words import describe
    from fuzz.core.refusal import refusal
    from fuzz.core.verdict import summary
    from fuzz.corpus.store import load_case
    from fuzz.minimize import Step, minimize
    from fuzz.session.summary.findings import reproduce

    case = load_case(options.case)
    target = _load(case.target, options)
    if (why := target.missing()) is not None:
        raise _usage(f"{case.target} cannot run here: {why}")
    _check_size(case, target, options)
    out = Path(options.out or Path(options.case).with_suffix(".min.json"))
    _check_place("--out", out)

    def accepted(step: Step) -> None:
        out.write_text(to_json(step.case))  # now, so that whatever ends the search leaves the best so far
        print(f"  {step}", file=sys.stderr)

    with _runner(options) as runner:
        found = minimize(
            case,
            runner.run,
            max_runs=options.max_runs,
            max_seconds=options.max_time,
            allowed=lambda candidate: refusal(target, candidate) is None,
            progress=accepted,
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
    print(reproduce(str(out), _files(options)))
    return FINDINGS


def conformance(options: argparse.Namespace) -> int:
    from fuzz.corpus.conformance import cases_of, conformance
    from fuzz.corpus.store import load_all
    from fuzz.session.precompile.background_compile import compile_for

    target = _load(options.target, options)
    if (why := target.missing()) is not None:
        raise _usage(f"{target.name} cannot run here: {why}")
    entries = load_all(Path(options.corpus))
    everything = options.all or _device(options) == "cuda"
    compile_for(target, cases_of(target, entries, everything=everything), Console(stderr=True))
    with _runner(options) as runner:
        matrix = conformance(target, entries, runner.run, everything=everything)
    print(matrix.to_json() if options.json else matrix.render(), end="")
    return OK if matrix.ok else FINDINGS


def compile_ahead(options: argparse.Namespace) -> int:
    from fuzz.compiling import Build, Cache, Pool
    from fuzz.session.precompile.build_plan import plan
    from fuzz.session.precompile.compile_progress import compile_all
    from fuzz.session.settings import from_options

    settings = from_options(_getter(options))
    cache, console = Cache(options.cache), make_console()
    if cache.notice:
        console.print(cache.notice, highlight=False, markup=False, soft_wrap=True)
    builds: list[Build] = []
    for arch in dict.fromkeys(options.arch or ["sm_100a"]):
        planned = plan(settings, arch)
        drawn = ", ".join(f"{count} of {name}" for name, count in planned.cases.items()) or "none that compile ahead"
        console.print(
            f"{arch}: {len(planned.builds)} keys for the cases of seed {settings.seed}: {drawn}", highlight=False
        )
        builds += planned.builds
    for name, why in planned.left_out.items():
        console.print(f"{name} is left out: {why}", highlight=False)
    with Pool(cache, options.jobs, options.kernel_timeout) as pool:
        ended = compile_all(pool, builds, console)
    return FINDINGS if any(one.status == "failed" for one in ended) else OK


def mutation_score(options: argparse.Namespace) -> int:
    from fuzz.score.command import score

    try:
        return score(options, make_console())
    except ValueError as error:
        raise _usage(str(error)) from error


def targets(options: argparse.Namespace) -> int:
    from fuzz.core.refusal import limits
    from fuzz.session.summary.surface_coverage import declared_lines
    from fuzz.targets.registry import targets

    console = make_console()
    for name, target in targets(_files(options), _device(options), mutants=True).items():
        why = target.missing()
        state = "[green]runs here[/]" if why is None else f"[yellow]cannot run here: {why}[/]"
        console.print(f"[bold]{name}[/] ({target.device}): {target.summary}. {state}", highlight=False)
        if "!" not in name:
            if not target.deterministic:
                console.print("    declared nondeterministic: repeats may differ", highlight=False, markup=False)
            for line in limits(target):
                console.print(f"    does not take: {line}", highlight=False, markup=False)
            for line in declared_lines(target):
                console.print(f"    {line}", highlight=False, markup=False)
    return OK


def sanitize(options: argparse.Namespace) -> int:
    from fuzz.cli.sanitize import sanitize

    settings = {"warp_schedule": options.warp_schedule, "seed": options.seed}
    settings |= {"resident_ctas": options.resident_ctas, "contraction": options.contraction}
    return sanitize(Path(options.script), options.arguments, options.arch, options.check, settings)


def doctor(options: argparse.Namespace) -> int:
    from fuzz.cli.doctor import checks, render

    found = checks()
    print(render(found), end="")
    return FINDINGS if any(check.status == "missing" for check in found) else OK


def schema(options: argparse.Namespace) -> int:
    import json

    from fuzz.core.case import schema

    print(json.dumps(schema(), indent=2))
    return OK


def _getter(options: argparse.Namespace) -> Callable[[str], Any]:
    """The value of an option by its name, None where the command has no such option."""
    return lambda name: getattr(options, name.replace("-", "_"), None)


def make_console() -> Console:
    """Where a command prints."""
    return Console() if sys.stdout.isatty() else Console(width=120)


def _device(options: argparse.Namespace):
    from fuzz.targets.autograd import default_device

    return options.device or default_device()


def _runner(options: argparse.Namespace) -> Runner:
    """The Runner of a command. Its zygote is a fork of this process, which has most imports behind it: not where a GPU
    is used, since this process may have looked at it, and CUDA does not survive a fork."""
    from fuzz.runner import Runner

    device = _device(options)
    runner = Runner("cuda:0" if device == "cuda" else device, files=_files(options))
    if device != "cuda":
        runner.fork_zygote()
    return runner


def _files(options: argparse.Namespace) -> tuple[str, ...]:
    return tuple(str(Path(file).resolve()) for file in options.target_file)


def _load(name: str, options: argparse.Namespace):
    from fuzz.targets.registry import load

    return load(name, _files(options), _device(options))


def _check_size(case, target, options: argparse.Namespace) -> None:
    """Raises where no memory holds the tensors of a case: those of a case that runs some CTAs only take none."""
    import psutil

    from fuzz.core.case_bounds import tensor_bytes

    gib, most = tensor_bytes(case.problem) >> 30, psutil.virtual_memory().total >> 30
    if gib > most and not target.ctas_of(case):
        where = f"{options.case}: problem.lengths_q, lengths_k"
        raise _usage(f"{where}: the tensors take {gib} GiB, and this machine has {most} GiB of memory")


def _check_place(option: str, path: Path) -> None:
    """Before the work: raises where a file cannot be written after it."""
    folder = path.resolve().parent
    if not folder.is_dir():
        raise _usage(f"{option}: {folder} is no folder")
    if path.is_dir():
        raise _usage(f"{option}: {path} is a folder")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise _usage(f"{option}: {path} cannot be written")


def _usage(message: str) -> Exception:
    from fuzz.targets.registry import TargetError

    return TargetError(message)
