"""python -m fuzz.score.source_mutants.session: the session of a mutant, in one process, that compiles as it goes.

`attnfuzz run` compiles all kernels of a shard before the shard's first case, some 50 of `blocksparse`. A mutant is
mostly found by one of the first cases, which need four each.
"""

from __future__ import annotations

import sys

import msgspec

from fuzz.score.source_mutants.trial import FINDINGS, OK, USAGE
from fuzz.session.plan import plan, runnable_here
from fuzz.session.settings import Settings
from fuzz.session.worker import run
from fuzz.targets.registry import TargetError


def main() -> int:
    """Runs the session that the arguments describe: target, device, cases, seed, seconds at most, folder."""
    target, device, cases, seed, seconds, folder = sys.argv[1:]
    given = {"device": device, "cases": int(cases), "seed": int(seed), "seconds": float(seconds), "folder": folder}
    settings = msgspec.convert({"targets": (target,), "size": "small", "minimize_runs": 0, **given}, Settings)
    try:
        runnable_here(settings)
    except TargetError as error:
        print(error)
        return USAGE
    return FINDINGS if run(settings, plan(settings), "w0") else OK


if __name__ == "__main__":
    sys.exit(main())
