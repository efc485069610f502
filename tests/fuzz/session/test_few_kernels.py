"""A session of few cases draws cases that share compiled kernels, where the target says which do."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from needs import needs_emulator

from fuzz.core.case import Case
from fuzz.core.target import DEAR, Target
from fuzz.session.draw import drawer_of, explore, seed_cases
from fuzz.session.few_kernels import of_few_families
from fuzz.session.plan import plan
from fuzz.session.settings import Settings
from fuzz.targets.registry import load


class ByDim(Target):
    """Cases of one head dim share a kernel; head dim 64 has too many."""

    kernel_families = 100

    def kernel_family(self, case: Case) -> object:
        return DEAR if case.problem.dim == 64 else case.problem.dim


def _session(name: str, cases: int) -> list[list[Case]]:
    """The cases of each shard."""
    settings, target = Settings(cases=cases, seed=5, targets=(name,)), load(name)
    found = []
    for shard in plan(settings):
        drawn: list[Case] = []
        explore(shard, drawer_of(target, settings, shard), drawn.append, seed_cases(shard, target, settings))
        found.append(drawn)
    return found


def _plain(dim: int) -> Case:
    case = _session("torch.sdpa.math", 1)[0][0]
    return replace(case, problem=replace(case.problem, dim=dim, dim_v=dim))


def test_cases_of_further_families_and_dear_ones_are_drawn_again() -> None:
    dims = iter([64, 8, 16, 24, 8, 32, 16])
    by_dim = {dim: _plain(dim) for dim in (8, 16, 24, 32, 64)}
    one = of_few_families(ByDim(), lambda draw: by_dim[next(dims)], 2)
    assert [one(None).problem.dim for _ in range(4)] == [8, 16, 8, 16]


def test_a_case_stays_where_no_draw_finds_another() -> None:
    case = _plain(64)
    assert of_few_families(ByDim(), lambda draw: case, 2)(None) is case


@needs_emulator
@pytest.mark.parametrize("name", ["sdpa", "dynamic_mask", "nsa"])
def test_short_sessions_have_half_as_many_families(name: str) -> None:
    target = load(name)
    few = _session(name, 40)
    free = _session(name, target.kernel_families)[: len(few)]
    of = [[{target.kernel_family(case) for case in shard} for shard in shards] for shards in (few, free)]
    assert all(DEAR not in families for families in of[0])
    assert sum(map(len, of[0])) <= sum(map(len, of[1])) / 2


def test_a_long_session_is_not_restricted() -> None:
    assert all(shard.kernels == 0 for shard in plan(Settings(cases=2000)))
