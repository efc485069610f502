"""Why a bug that is missed is none: rules that are checked, and arguments that were written down after a look at it.

A rule follows from what `trial.look_closer` saw, or from the two instructions alone. An argument is for one pattern of
instructions in the kernels as they are, and is printed with every survivor that it is used for.
"""

from __future__ import annotations

from msgspec.structs import replace

from fuzz.score.machine.values import Result


def judged(result: Result) -> Result:
    """The result, as equivalent where a rule or an argument says so."""
    return replace(result)
