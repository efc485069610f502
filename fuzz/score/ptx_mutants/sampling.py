"""Sample of mutants: drawn with a seed over operators and kernels, by turns, so that rare operators are among them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from fuzz.devices.emulator import ptx
from fuzz.devices.emulator.decode.decoder import Unimplemented, decode
from fuzz.score.ptx_mutants.async_operators import ALL_OPERATORS
from fuzz.score.ptx_mutants.operators import Line, changed, lines
from fuzz.score.ptx_mutants.results import PtxMutant

Texts: TypeAlias = Mapping[tuple[str, str], str]  # PTX by configuration and kind of kernel
_Site: TypeAlias = tuple[str, str, str, Line, str]  # configuration, kind, operator, instruction, text after
# Kinds of kernels in the order of their turns; of another target's, each as often, and every operator begins with
# another one.
TURNS: dict[str, tuple[str, ...]] = {
    "blocksparse": ("forward", "backward", "forward", "backward", "preprocess", "backward", "forward", "postprocess"),
}


def sample(count: int, seed: int, target: str, texts: Texts) -> Iterator[PtxMutant]:
    """The first `count` mutants of a seed; fewer where all operators have run out of places. A larger count begins with
    the same bugs. They come one by one: whether the changed PTX can be run is looked at when it is its turn."""
    choose = random.Random(seed)
    every = {place: lines(text) for place, text in texts.items()}
    queues = {name: _queue(name, number, target, texts, every, choose) for number, name in enumerate(ALL_OPERATORS)}
    places: set[tuple[str, str, int, str]] = set()
    made = 0
    while queues:
        for name in list(queues):
            if made == count:
                return
            bug = next((b for b in queues[name] if (b.config, b.kind, b.line, b.after) not in places), None)
            if bug is None:
                del queues[name]
                continue
            places.add((bug.config, bug.kind, bug.line, bug.after))
            made += 1
            yield bug


def mutated(bug: PtxMutant, text: str) -> str:
    """The PTX of a kernel, mutated."""
    return changed(text, bug.line, bug.span, bug.after)


def _queue(
    operator: str,
    number: int,
    target: str,
    texts: Texts,
    every: Mapping[tuple[str, str], list[Line]],
    choose: random.Random,
) -> Iterator[PtxMutant]:
    """Mutants that an operator can make, kinds of kernels by turns, in an order drawn once for all. number: of the
    operator."""
    by_kind: dict[str, list[_Site]] = {}
    for (config, kind), found in every.items():
        sites = by_kind.setdefault(kind.partition(".")[0], [])
        for line in found:
            sites += [(config, kind, operator, line, after) for after in ALL_OPERATORS[operator](line)]
    for sites in by_kind.values():
        choose.shuffle(sites)
    turns = TURNS.get(target.partition(".")[0])
    if turns is None:
        kinds = sorted(by_kind)
        first = number % max(len(kinds), 1)
        turns = tuple(kinds[first:] + kinds[:first])
    return _by_turns(by_kind, turns, target, texts)


def _by_turns(
    by_kind: dict[str, list[_Site]], turns: tuple[str, ...], target: str, texts: Texts
) -> Iterator[PtxMutant]:
    while any(by_kind.values()):
        for kind in turns:
            sites = by_kind.get(kind, [])
            while sites:
                config, its_kind, operator, line, after = sites.pop()
                bug = PtxMutant(config, its_kind, operator, line.number, line.text, after, line.span, target)
                if _decodes(mutated(bug, texts[config, its_kind])):
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
