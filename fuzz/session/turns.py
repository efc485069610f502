"""Turns: each kernel of a target gets its case of a session before any gets a second one.

A session of a target begins with one case for each of its kernels, in an order that follows from the session's seed,
and the target's seed cases among the first of them. Kernels whose CTAs wait for one another can fail in more ways than
others: two of them come before each other one. They fill its shards from the first on, so they are the same with
any number of workers; what follows is drawn as draw.py says. They are drawn by a generator of their own: Hypothesis
forbids draws that depend on what was drawn before.

A session that has fewer cases than a target has compiled kernels takes the first few kernels of that order
(`Shard.kernels`), in turn until its end.

NOTE [unlike first]: the next kernel is the one with most options, dtypes and head dims that no kernel before it has;
once all were there, counting begins anew. So the first kernels of a session are as different as they can be. In a
random order one session of `blocksparse` in four has one of the few kernels that take intervals as their mask among its
first three, in this one every second.
"""

from __future__ import annotations

import random

from fuzz.core.case import Case, attention_of
from fuzz.core.case_limits import Size
from fuzz.core.kernel_choice import KernelChoice
from fuzz.core.refusal import refusal
from fuzz.core.target import Target
from fuzz.generate.cases import kernel_case
from fuzz.generate.kernel_turns import meet
from fuzz.session.plan import Shard

TRIES = 20  # for a case that no rule refuses
WAITING_EACH = 2  # kernels whose CTAs wait, before each other one
KERNELS_EACH = 4  # so many kernels have their turn before each of the target's seed cases


def first_cases(shard: Shard, target: Target, size: Size, repeats: int, seed: int) -> tuple[Case, ...]:
    """The cases that a shard begins with, in place of as many drawn ones. seed: the session's."""
    kernels = _order(target.kernel_choices(), random.Random(f"{seed}/{target.name}"))
    turns, end = len(kernels), shard.start + shard.cases
    if shard.kernels and kernels:
        kernels, turns = kernels[: shard.kernels], end
    return tuple(
        place
        if isinstance(place, Case)
        else _turn(target, size, repeats, kernels[place % len(kernels)], f"{seed}/{target.name}/{place}")
        for place in _places(turns, target.seed_cases())[shard.start : end]
    )


def _order(kernels: tuple[KernelChoice, ...], draw: random.Random) -> list[KernelChoice]:
    """All kernels: two whose CTAs wait before each that has no such CTAs, while there are both; of several the one with
    most that the kernels before it do not have, NOTE [unlike first]."""
    shuffled = draw.sample(kernels, len(kernels))
    waiting = [kernel for kernel in shuffled if kernel.least_q]
    others = [kernel for kernel in shuffled if not kernel.least_q]
    order: list[KernelChoice] = []
    seen: set[tuple[str, object]] = set()
    while waiting or others:
        turn = waiting if waiting and (not others or len(order) % (WAITING_EACH + 1) < WAITING_EACH) else others
        fresh = [len(_properties(kernel) - seen) for kernel in turn]
        if not any(fresh):
            seen.clear()
            fresh = [len(_properties(kernel)) for kernel in turn]
        kernel = turn.pop(fresh.index(max(fresh)))
        seen |= _properties(kernel)
        order.append(kernel)
    return order


def _properties(kernel: KernelChoice) -> set[tuple[str, object]]:
    """The properties by which kernels differ: options, those that a kernel does not have, dtype, dims, softcap."""
    options = {**kernel.variant, **dict.fromkeys(kernel.absent)}
    return {*options.items(), ("dtype", kernel.dtype), ("dims", kernel.dims), ("softcap", kernel.softcap)}


def _places(turns: int, seed_cases: tuple[Case, ...]) -> list[Case | int]:
    """Seed cases, and the numbers of the kernels' turns, in the order of a session."""
    places: list[Case | int] = list(range(turns))
    for i, case in enumerate(seed_cases):
        places.insert(KERNELS_EACH * (i + 1) + i, case)  # at the end where there are fewer
    return places


def _turn(target: Target, size: Size, repeats: int, kernel: KernelChoice, seed: str) -> Case:
    """The case of a kernel: the first of TRIES that no rule refuses, and in three of four turns of a kernel whose CTAs
    wait, one in which they meet; where there is none, the last one that is not refused, or the last."""
    to_meet = bool(kernel.least_q) and random.Random(seed).randrange(4) > 0
    found = None
    for attempt in range(TRIES):
        case = kernel_case(random.Random(f"{seed}/{attempt}"), target, size, repeats, kernel)
        if refusal(target, case) is None:
            found = case
            if not to_meet or meet(attention_of(case), kernel):
                break
    return found or case
