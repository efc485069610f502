"""Sample of mutants: drawn with a seed, over operators and packages by turns, so that rare ones are among them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from fuzz.score.source_mutants.operators import OPERATORS, mutants
from fuzz.score.source_mutants.results import SourceMutant

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = {name: f"kernels/{name}" for name in ("blocksparse", "dynamic_mask", "nsa", "sdpa")}
# Files on which no answer depends: what refuses a wrong call (sessions make right ones), what estimates time, and the
# mutants' own places.
LEFT_ALONE = ("checks.py", "call_checks.py", "validate/", "cost_model.py", "injection.py", "supported.py")


def sample(target: str, count: int, seed: int) -> list[SourceMutant]:
    """The first `count` mutants of a seed, of the kernels of one target; a larger count begins with the same ones.
    Raises KeyError for a target whose source is not known."""
    choose = random.Random(seed)
    queues = {name: _queue(name, every, choose) for name, every in _by_operator(PACKAGES[target]).items()}
    found: list[SourceMutant] = []
    lines: set[tuple[str, int]] = set()
    while queues and len(found) < count:
        for name in list(queues):
            mutant = next((m for m in queues[name] if (m.file, m.line) not in lines), None)
            if mutant is None:
                del queues[name]
                continue
            lines.add((mutant.file, mutant.line))
            found.append(mutant)
    return found[:count]


def _by_operator(package: str) -> dict[str, list[SourceMutant]]:
    found: dict[str, list[SourceMutant]] = {name: [] for name in OPERATORS}
    for path in sorted((ROOT / package).rglob("*.py")):
        file = str(path.relative_to(ROOT))
        if any(part in file for part in LEFT_ALONE):
            continue
        for mutant in mutants(path.read_text(), file):
            found[mutant.operator].append(mutant)
    return found


def _queue(name: str, every: list[SourceMutant], choose: random.Random) -> Iterator[SourceMutant]:
    """Mutants of an operator, packages by turns, in an order drawn once for all."""
    by_package: dict[str, list[SourceMutant]] = {}
    for mutant in every:
        by_package.setdefault(mutant.package, []).append(mutant)
    for mutants_ in by_package.values():
        choose.shuffle(mutants_)
    while any(by_package.values()):
        for mutants_ in by_package.values():
            if mutants_:
                yield mutants_.pop()
