"""Sample of mutants: drawn with a seed over operators and kernels, by turns, so that rare operators are among them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache
from typing import TypeAlias

from fuzz.compiling import obtain
from fuzz.devices.emulator import ptx
from fuzz.devices.emulator.decode.decoder import Unimplemented, decode
from fuzz.score.ptx_mutants.configs import CONFIGS, Config, builds_of
from fuzz.score.ptx_mutants.operators import OPERATORS, Line, changed, lines
from fuzz.score.ptx_mutants.results import PtxMutant

_Site: TypeAlias = tuple[Config, str, str, Line, str]  # kernel, kind, operator, text before, text after
TURNS = ("forward", "backward", "forward", "backward", "preprocess", "backward", "forward", "postprocess")


@lru_cache
def text_of(chosen: Config, kind: str) -> str:
    """The PTX of a clean kernel, compiled now where the cache has none. Raises CompileError."""
    return obtain(builds_of(chosen)[kind]).ptx.read_text()


@lru_cache
def _lines(chosen: Config, kind: str) -> list[Line]:
    return lines(text_of(chosen, kind))


def sample(count: int, seed: int) -> list[PtxMutant]:
    """The first `count` mutants of a seed; fewer where all operators have run out of places. A larger count begins with
    the same bugs."""
    choose = random.Random(seed)
    queues = {name: _queue(name, choose) for name in OPERATORS}
    found: dict[str, PtxMutant] = {}
    places: set[tuple[str, str, int, str]] = set()
    while queues and len(found) < count:
        for name in list(queues):
            bug = next((b for b in queues[name] if (b.config, b.kind, b.line, b.after) not in places), None)
            if bug is None:
                del queues[name]
                continue
            places.add((bug.config, bug.kind, bug.line, bug.after))
            found[bug.id] = bug
            if len(found) == count:
                break
    return list(found.values())


def mutated(bug: PtxMutant, chosen: Config) -> str:
    """The mutated PTX of a kernel."""
    return changed(text_of(chosen, bug.kind), bug.line, bug.span, bug.after)


def _queue(operator: str, choose: random.Random) -> Iterator[PtxMutant]:
    """Mutants that an operator can make, kinds of kernels by turns, in an order drawn once for all."""
    by_kind: dict[str, list[_Site]] = {}
    for chosen in CONFIGS:
        for kind in builds_of(chosen):
            sites = by_kind.setdefault(kind, [])
            for line in _lines(chosen, kind):
                sites += [(chosen, kind, operator, line, after) for after in OPERATORS[operator](line)]
    for sites in by_kind.values():
        choose.shuffle(sites)
    return _by_turns(by_kind)


def _by_turns(by_kind: dict[str, list[_Site]]) -> Iterator[PtxMutant]:
    while any(by_kind.values()):
        for kind in TURNS:
            sites = by_kind.get(kind, [])
            while sites:
                chosen, _, operator, line, after = sites.pop()
                bug = PtxMutant(chosen.name, kind, operator, line.number, line.text, after, line.span)
                if _decodes(mutated(bug, chosen)):
                    yield bug
                    break


def _decodes(text: str) -> bool:
    try:
        module = ptx.parse(text)
        for kernel in module.kernels.values():
            decode(module, kernel)
    except (Unimplemented, ptx.PtxError):
        return False
    return True
