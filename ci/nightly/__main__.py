"""`python -m ci.nightly`: plans a night, runs its stages, and prints what became of them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from ci.nightly import state
from ci.nightly.commands import tail
from ci.nightly.options import Asked, Options, parse
from ci.nightly.stages import NAMES, STAGES, Stage
from ci.nightly.state import Done, Kept, Night
from ci.nightly.summary import exit_code, news, plan, table


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 nothing new, 1 something new or a check that failed, 3 a stage broke, 130 interrupted."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the seconds of the stage are kept
    asked = parse(arguments, NAMES)
    root = Path(asked.root)
    if asked.dry_run:
        return _dry_run(root, asked)
    night = state.open_night(
        root, msgspec.to_builtins(asked.options), _commit(), seed=asked.seed, new=asked.new
    )  # fmt: skip
    options = _shorter(msgspec.convert(night.kept.settings, Options), asked.options)
    night.kept.settings = msgspec.to_builtins(options)
    night.save()
    if night.kept.done or night.kept.spent:
        print(f"goes on with night {night.name}, as it began (--new begins another)")
    print(plan(night.kept, options, state.newest(root, done=True)), flush=True)
    for stage in STAGES:
        _run(night, options, stage)
    night.end()
    lines = news(night, options)
    print("\n".join([table(night), *(lines or ["nothing is new"])]))
    print(f"night {night.name} in {night.folder}", flush=True)
    return exit_code(night, lines)


def _dry_run(root: Path, asked: Asked) -> int:
    """Prints the plan, and changes nothing."""
    last = state.newest(root)
    if last is not None and not last.ended and not asked.new and time.time() - last.began < state.STALE:
        kept, options = last, _shorter(msgspec.convert(last.settings, Options), asked.options)
    else:
        kept, options = Kept("to come", time.time(), asked.seed or 0), asked.options
    print(plan(kept, options, state.newest(root, done=True)))
    return 0


def _shorter(began: Options, asked: Options) -> Options:
    """The options that a night began with; those asked for now may leave out further stages, and limit the fuzzing."""
    skip = tuple(dict.fromkeys([*began.skip, *asked.skip]))
    return msgspec.structs.replace(began, skip=skip, minutes=asked.minutes or began.minutes)


def _run(night: Night, options: Options, stage: Stage) -> None:
    """Runs a stage that is not done. A stage that raises is a stage that broke: the night goes on."""
    if stage.name in night.kept.done:
        return
    if stage.name in options.skip:
        night.finish(stage.name, Done("skipped", "--skip"))
        return
    print(f"::: {stage.name}: {stage.what}", flush=True)
    began, before = time.monotonic(), night.kept.spent.get(stage.name, 0.0)
    try:
        done = stage.run(night, options)
    except KeyboardInterrupt:
        _spend(night, stage, before + time.monotonic() - began)
        raise SystemExit(130) from None
    except Exception as error:
        done = Done("failed", f"{type(error).__name__}: {error}".split("\n")[0])
    seconds = before + time.monotonic() - began
    night.finish(stage.name, msgspec.structs.replace(done, seconds=round(seconds, 1)))
    print(f"    {done.status}: {done.note} ({seconds / 60:.1f} minutes)", flush=True)
    if done.status == "failed" and night.log(stage.name).exists():
        print(tail(night.log(stage.name)), flush=True)


def _spend(night: Night, stage: Stage, seconds: float) -> None:
    night.kept.spent[stage.name] = seconds
    night.save()


def _commit() -> str:
    """The commit of the checkout, or ''."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
