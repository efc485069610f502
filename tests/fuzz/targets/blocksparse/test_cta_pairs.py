"""Lists for pairs of CTAs: in block lists, in refusals, in what is predicted, in ci's target and in verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest
from covering import nightly_unless
from needs import needs_emulator

from fuzz.core.case import Case, attention_of
from fuzz.core.refusal import refusal
from fuzz.core.script_call import Text
from fuzz.core.target import Target
from fuzz.judging.judge import execute
from fuzz.session.draw import drawer_of, explore
from fuzz.session.plan import plan
from fuzz.session.settings import Settings
from fuzz.targets.blocksparse import cta_pairs
from fuzz.targets.blocksparse.block_lists import blocks_of
from fuzz.targets.blocksparse.case_blocks import CaseBlocks
from fuzz.targets.blocksparse.emulated import EmulatedBlockSparse
from fuzz.targets.blocksparse.hang_report import semaphores_explained
from fuzz.targets.blocksparse.script import blocksparse_text
from fuzz.targets.blocksparse.static_checks import as_metadata
from fuzz.targets.blocksparse.target import BlockSparseTarget
from fuzz.targets.registry import load
from kernels.mutants.blocksparse.registration import BlockSparseMutant
from kernels.mutants.blocksparse.table import MUTANTS
from oracles import block_lists
from oracles.masks import Blocks, Causal, Documents, PerHead, Window
from oracles.problem import Problem

FILE = Path(__file__).resolve().parents[4] / "ci" / "blocksparse_tcgen05.py"
NAME = cta_pairs.TARGET
PAIRED: dict[str, str | int | bool] = {"products": "tcgen05", "paired": 256}
RANDOM = Blocks(32, 16, ("F.M.F", "....", "M..F", "MMMM", "F", ".F", "M.FM", "F..F", "..MM"), 3)


def problem(dim: int = 64, dtype: str = "bfloat16", **more) -> Problem:
    return Problem((300,), (600,), 2, 1, dim, dim, dtype, **{"mask": Causal("bottom_right")} | more)  # type: ignore[arg-type]


def of_ci() -> Target:
    return load(NAME, (str(FILE),))


@pytest.mark.parametrize(
    ("mask", "variant"),
    [
        (RANDOM, {"lists": "csr", "schedule": "shuffled"}),
        (RANDOM, {"lists": "padded"}),
        (PerHead((Causal(), Documents((90,)))), {"lists": "compact", "schedule": "planned"}),
        (Documents((30, 90, 200)), {"mask": "intervals", "source": "ranges"}),
        (Documents((30, 90, 200)), {"mask": "intervals", "source": "linear"}),
        (Window(100, 20), {"mask": "band", "lists": "padded", "schedule": "descending"}),
    ],
)
def test_lists_for_pairs_are_the_mask(mask, variant: dict) -> None:
    case = Case("blocksparse", problem(mask=mask), variant=PAIRED | variant)
    assert refusal(BlockSparseTarget(), case) is None
    paired = blocks_of(case).paired
    assert paired is not None and (paired.tile_m, paired.tile_n) == (128, 256)
    assert paired.backward is not None and paired.order is not None
    assert block_lists.check(attention_of(case), as_metadata(paired)) == []
    assert BlockSparseTarget().inspect(case) == []
    visits = CaseBlocks(case, "").visits
    assert visits is not None and visits.ctas == 3  # pairs of CTAs: 600 keys, one KV head
    assert {n_block for *_, n_block in visits.owner} == {0, 1, 2}


@pytest.mark.parametrize(
    ("given", "variant"),
    [
        (problem(backward=False), PAIRED),
        (problem(96), PAIRED),
        (problem(), PAIRED | {"products": "wgmma"}),
        (problem(), {"paired": 256}),
        (problem(), PAIRED | {"paired": 128}),
        (problem(), PAIRED | {"keys": "split"}),
    ],
)
def test_what_is_refused(given: Problem, variant: dict) -> None:
    refused = refusal(EmulatedBlockSparse(), Case("blocksparse", given, variant=variant))
    assert refused is not None and refused.kind == "cannot"


def test_every_bug_in_the_metadata_is_in_lists_for_pairs_too() -> None:
    case = Case("blocksparse", problem(mask=PerHead((Causal(), Window(90, 20)))), variant=PAIRED)
    changed = set()
    for name, mutant in MUTANTS.items():
        if mutant.blocks is not BlockSparseMutant.blocks:
            launched = CaseBlocks(case, name).launched
            assert launched.paired is not None and launched.paired.paired is None and launched.paired.tile_n == 256
            if block_lists.check(attention_of(case), as_metadata(launched.paired)):
                changed.add(name)
    assert {"last_row_not_transposed", "slots_not_transposed", "head_ignored"} <= changed, changed


def test_nothing_is_predicted_for_pairs_whose_protocol_a_mutant_changes() -> None:
    case = Case("blocksparse", problem(), variant=PAIRED)
    assert CaseBlocks(case, "").visits is not None and CaseBlocks(case, "rank_direction").visits is not None
    for name in ("lock_is_n_block", "release_missing", "wait_missing"):
        assert CaseBlocks(case, name).visits is None


def test_semaphores_of_pairs_are_explained_by_pairs() -> None:
    case = Case("blocksparse", problem(mask=Window(1000, 1000)), variant=PAIRED | {"mask": "band"})
    blocks = CaseBlocks(case, "")
    visits = blocks.visits
    assert blocks.ctas_of_tile == 2 and visits is not None and visits.tiles == 6
    raw = [6, 6, 6, 6, 6, 3]  # of the last tile one pair has added, and one CTA of the second
    explained = semaphores_explained("backward", [value // blocks.ctas_of_tile for value in raw], visits, 4)
    assert "1 of 6 dQ tiles lack some of their adds" in explained["explained"]
    assert "m 2] is 1 of 3" in explained["explained"]


def test_a_session_of_ci_runs_every_backward_pass_on_pairs() -> None:
    target, settings = of_ci(), Settings(targets=(NAME,), files=(str(FILE),), cases=400, size="small")
    found: list[Case] = []
    for shard in plan(settings):
        explore(shard, drawer_of(target, settings), found.append)
    run = [case for case in found if refusal(target, case) is None]
    assert len(run) > 0.75 * len(found)
    for case in run:
        backward = [name for name in target.planned(case) or () if name.startswith("backward_")]
        assert len(backward) == 1 and "_n256_" in backward[0] and "tcgen05" in backward[0], case
    assert {case.variant["mask"] for case in run} == {"bits", "intervals", "band"}
    for name, values in (("lists", 3), ("schedule", 4), ("deterministic", 2)):
        assert len({case.variant[name] for case in run}) == values, name
    problems = [attention_of(case) for case in run]
    assert {p.layout for p in problems} == {"padded", "packed"} and {p.dtype for p in problems} == {
        "bfloat16",
        "float16",
    }
    assert {p.dim <= 64 for p in problems} == {False, True} and any(p.softcap for p in problems)
    assert any(p.heads_q > p.heads_kv for p in problems) and any(p.len_k > 512 for p in problems)


def test_a_case_that_would_run_on_single_ctas_is_refused_by_ci() -> None:
    target = of_ci()
    assert refusal(target, Case(NAME, problem(), variant=PAIRED | {"tile_m": 128, "tile_n": 128})) is None
    alone = Case(NAME, problem(), variant={"tile_m": 128, "tile_n": 128, "products": "tcgen05"})
    for case in (alone, Case(NAME, problem(backward=False), variant=alone.variant)):
        refused = refusal(target, case)
        assert refused is not None and refused.kind == "cannot"


def test_a_mutant_of_pairs_is_looked_for_where_its_kernel_is_drawn() -> None:
    named = {name for name, mutant in MUTANTS.items() if mutant.summary.startswith("pairs of CTAs:")}
    assert named == cta_pairs.MUTANTS
    for name in ("commit_in_leader_alone", "delta_added"):
        why = EmulatedBlockSparse(name).missing()
        assert (why is not None and NAME in why) == (name in named)
        assert load(f"{NAME}!{name}", (str(FILE),), "emulator").missing() is None


def test_a_script_has_lists_for_pairs() -> None:
    case = Case("blocksparse", problem(), variant=PAIRED | {"schedule": "planned"})
    text = blocksparse_text(case, "")
    assert isinstance(text, Text)
    (line,) = [line for line in text.call if "paired=" in line]
    assert "tile_n=256" in line and "least_blocking" in line


@needs_emulator
@pytest.mark.parametrize(
    ("given", "variant"),
    [
        nightly_unless(at == 0, *case)
        for at, case in enumerate(
            [
                (problem(mask=RANDOM), {"schedule": "shuffled"}),
                (problem(128, mask=Documents((50, 260))), {"mask": "intervals", "deterministic": False}),
                (
                    Problem((300, 0, 200), (350, 40, 0), 2, 1, 56, 56, "float16", "packed", Window(100, 20)),
                    {"mask": "band", "deterministic": False, "lists": "padded"},
                ),
                (problem(dtype="float16", softcap=5.0), {"lists": "compact"}),
            ]
        )
    ],
)
def test_pairs_are_right_on_the_emulated_gpu(given: Problem, variant: dict) -> None:
    verdict = execute(
        case := Case("blocksparse", given, variant=PAIRED | variant | {"slots": 2, "warps": "random"}, repeats=2),
        load(case.target),
        lambda phase, limit: None,
    )
    assert verdict.outcome == "pass", verdict
    assert any(name.startswith("backward_") and "_n256_" in name for name in verdict.kernel.split(", "))
