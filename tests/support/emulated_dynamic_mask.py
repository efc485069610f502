"""Mutants of kernels.dynamic_mask on the emulated GPU, in a process of its own: Triton decides at its import whether it
interprets. `python emulated_dynamic_mask.py MUTANT…` prints a JSON object: for each mutant the outcome on the case that
shows it, the tensors and kinds of its findings, and the outcome of the correct kernel.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from dynamic_mask_shown import SHOWN
from msgspec.structs import replace

from fuzz.judging.judge import execute
from fuzz.targets.dynamic_mask.emulated import EmulatedDynamicMask


def _verdict(name: str, case: Any) -> Any:
    target = EmulatedDynamicMask(name)
    return execute(replace(case, target=target.name), target, lambda phase, limit: None)


def main(names: list[str]) -> None:
    """Runs each mutant on its case, and the correct kernel."""
    found = {}
    for name in names:
        case, _ = SHOWN[name]
        wrong, right = _verdict(name, case), _verdict("", case)
        kinds = sorted({f"{f.tensor} {f.kind}".strip() for f in wrong.findings})
        found[name] = {"outcome": wrong.outcome, "kinds": kinds, "right": right.outcome}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
