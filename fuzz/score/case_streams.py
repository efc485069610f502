"""The cases of a trial, endlessly: as a session draws them, or uniformly and without boundaries, as a plain test does.

A session's cases come in shards; so do these, each shard from a seed of its own. Cases that the target does not take,
and those that need a kernel beyond the score's, are left out and not counted: drawing costs a millisecond.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from itertools import count

from msgspec.structs import replace

from fuzz.compiling.build_key import Compiled
from fuzz.core.case import Case, Inputs
from fuzz.core.case_limits import Size
from fuzz.core.refusal import refusal
from fuzz.core.target import Target
from fuzz.generate.cases import drawer
from fuzz.score.settings import Generator, Settings, Trial
from fuzz.score.trial_plan import good, kernels, size_of, within
from fuzz.session.draw import explore
from fuzz.session.plan import SHARD_CASES, Shard
from fuzz.session.turns import first_cases
from oracles import masks as m
from oracles.masks import Mask
from oracles.problem import Problem

UNIFORM_DIMS = (32, 64, 128)
MOST_DRAWN = 200  # for each case that is taken; beyond it the target takes nothing


def case_stream(trial: Trial, target: Target, settings: Settings) -> Iterator[Case]:
    """The cases of a trial; the same for the same trial and settings. Raises ValueError where the target takes none."""
    clean = good(target, settings.device)
    allowed = kernels(clean.name, settings.device, settings.keys, settings.repeats, settings.seed)
    refused = 0
    for case in _all(trial.generator, trial.seed, target, settings.repeats):
        refused += 1
        if refused > MOST_DRAWN:
            raise ValueError(f"{target.name}: takes none of {MOST_DRAWN} cases")
        if refusal(target, case) is None and within(replace(case, target=clean.name), clean, allowed):
            refused = 0
            yield _planned(case, target)


def _planned(case: Case, target: Target) -> Case:
    """Without the relations that choose other kernels, where those have to be compiled."""
    if not isinstance(target, Compiled):
        return case
    kept = tuple(name for name in case.relations if name not in ("options", "same_bits_options"))
    return replace(case, relations=kept)


def _all(generator: Generator, seed: int, target: Target, repeats: int) -> Iterator[Case]:
    if generator == "uniform":
        yield from uniform(target, size_of(target), repeats, seed)
    for index in count():
        drawn: list[Case] = []
        shard = Shard(
            target.name,
            index,
            SHARD_CASES,
            zlib.crc32(f"{seed}/{target.name}/{index}".encode()),
            index * SHARD_CASES,
        )
        size = size_of(target)
        explore(shard, drawer(target, size, repeats), drawn.append, first_cases(shard, target, size, repeats, seed))
        yield from drawn


def uniform(target: Target, size: Size, repeats: int, seed: int) -> Iterator[Case]:
    """Cases as plain tests have them: every choice uniform, lengths anywhere or whole tiles, normal inputs without odd
    strides, no empty sequences, the default scale, no softcap, forward and backward."""
    draw = random.Random(f"{seed}/{target.name}")
    while True:
        yield _uniform_case(draw, target, size, repeats)


def _uniform_case(draw: random.Random, target: Target, size: Size, repeats: int) -> Case:
    support = target.support
    heads_kv = draw.choice((1, 2))
    heads_q = heads_kv * (draw.choice((1, 2)) if support.gqa else 1)
    batch = draw.randint(1, max(1, min(2, size.rows // heads_q)))
    dim = draw.choice([d for d in UNIFORM_DIMS if support.takes_dim(d)] or [support.dim[0]])
    longest = min(int((size.pairs / heads_q / batch) ** 0.5), size.length)
    len_q = _uniform_length(draw, longest)
    len_k = len_q if draw.random() < 0.5 else _uniform_length(draw, longest)
    problem = Problem(
        lengths_q=(len_q,) * batch,
        lengths_k=(len_k,) * batch,
        heads_q=heads_q,
        heads_kv=heads_kv,
        dim=dim,
        dim_v=dim,
        dtype=draw.choice(support.dtypes),
        layout=draw.choice(support.layouts),
        mask=_uniform_mask(draw, support.masks, len_q, len_k),
        backward=support.backward,
    )
    variants = target.variants_for(problem)
    inputs = Inputs(seed=draw.randint(0, 2**31 - 1))
    return Case(target.name, problem, inputs, variant=dict(draw.choice(variants)), repeats=repeats)


def _uniform_length(draw: random.Random, longest: int) -> int:
    """Anywhere, or a multiple of 32."""
    if longest >= 32 and draw.random() < 0.5:
        return 32 * draw.randint(1, longest // 32)
    return draw.randint(1, max(longest, 1))


def _uniform_mask(draw: random.Random, allowed: frozenset[str] | None, len_q: int, len_k: int) -> Mask:
    kinds = [kind for kind in ("full", "causal", "window", "blocks") if allowed is None or kind in allowed]
    match draw.choice(kinds or ["full"]):
        case "causal":
            return m.Causal()
        case "window":
            return m.Window(draw.randint(0, len_k), 0)
        case "blocks":
            rows = ["".join(draw.choice(".F") for _ in range(-(-len_k // 64))) for _ in range(-(-len_q // 64))]
            return m.Blocks(64, 64, tuple(rows), 0)
    return m.Full()
