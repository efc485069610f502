"""PTX mutants: how many small changes of the bundled kernels' PTX does the harness find on the emulated GPU?

    from fuzz.score.ptx_mutants import run
    score = run(300, seed=1, jobs=1, seconds=0.0, progress=print, folder=Path("…"))   # results.PtxScore
    python -m fuzz.score.ptx_mutants --count 300 --json ci/results/ptx_mutants_host.json

operators.py    the changes
configs.py      the kernels, and the cases
sampling.py     the mutants that a seed draws
trial.py        one mutant: runs the cases that reach it until one finds it; what a missed one did
pool.py         worker processes
equivalence.py  which of the missed mutants are equivalent, and why
results.py      PtxMutant, Result, PtxScore
render.py       `table(score)`: a score as Markdown
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuzz.score.ptx_mutants.results import PtxMutant, PtxScore, Result
    from fuzz.score.ptx_mutants.run import run

__all__ = ["PtxMutant", "PtxScore", "Result", "run"]


def __getattr__(name: str) -> Any:
    """Loaded when first used: the emulator and torch take seconds."""
    if name == "run":
        from fuzz.score.ptx_mutants.run import run

        return run
    if name in __all__:
        from fuzz.score.ptx_mutants import results as values

        return getattr(values, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
