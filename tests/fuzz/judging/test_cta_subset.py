"""Some CTAs of a launch at 2,000,000 tokens, on a machine without the memory for them."""

from __future__ import annotations

import random

import msgspec
import pytest
import torch

from fuzz.core.case import Case, Inputs, Storage, from_json, to_json
from fuzz.core.refusal import refusal
from fuzz.core.verdict import Verdict
from fuzz.judging.cta_subset import reserved, seen
from fuzz.judging.judge import execute
from fuzz.score import criteria_judge
from fuzz.session.draw import drawer_of, explore, seed_cases
from fuzz.session.plan import Shard
from fuzz.session.settings import Settings
from fuzz.targets.blocksparse import cta_subset
from fuzz.targets.blocksparse.devices import emulator_there
from fuzz.targets.blocksparse.emulated import EmulatedBlockSparse
from fuzz.targets.registry import load
from kernels.blocksparse.launch import forward as launch
from oracles.masks import Causal, Window
from oracles.problem import Problem

PROBLEM = Problem((5000,), (5000,), 4, 2, 64, 64, "float16", mask=Window(70, 5), backward=False)
KERNEL = {"tile_m": 64, "tile_n": 128, "mask": "band"}
needs_emulator = pytest.mark.skipif(not emulator_there(), reason="needs the emulated GPU")


def emulated() -> EmulatedBlockSparse:
    target = load("blocksparse")
    assert isinstance(target, EmulatedBlockSparse)
    return target


def run(case: Case) -> Verdict:
    return execute(case, load(case.target), lambda phase, limit: None)


def test_reserved_memory_takes_none_until_it_is_touched() -> None:
    x = reserved((4, 1 << 30, 128), torch.float16, Storage("bhsd"))
    x[3, (1 << 30) - 1, 127] = 2.0
    assert x.nbytes == 1 << 40 and float(x[3, (1 << 30) - 1, 127]) == 2.0 and float(x[2, 5, 5]) == 0.0


@needs_emulator
@pytest.mark.parametrize("ctas", ["8,12,13,16", "311,315", "0,4"])
def test_neighbouring_tiles_are_told_apart(ctas) -> None:
    verdict = run(Case("blocksparse", PROBLEM, Inputs(), KERNEL | {"ctas": ctas}))
    assert verdict.outcome == "pass" and verdict.ratio > 0, verdict


@needs_emulator
def test_the_first_cta_of_the_last_head_writes_rows_of_that_head(monkeypatch) -> None:
    written = []

    def noted(case, tensors, into, *rest, run=cta_subset.run):
        found = run(case, tensors, into, *rest)
        written.append(into.lse.flatten(0, 1).ne(0).any(1).nonzero().flatten().tolist())
        return found

    monkeypatch.setattr(cta_subset, "run", noted)
    for heads_q, heads_kv, most in ((4, 2, 1), (12, 6, 3), (5, 5, 2)):
        problem = msgspec.structs.replace(PROBLEM, heads_q=heads_q, heads_kv=heads_kv)
        size = 2 * problem.len_k * problem.dim * 2
        monkeypatch.setattr(launch, "UNEVEN_L2_BYTES", most * size)
        cta = cta_subset._first_of_last_head(problem, -(-problem.len_q // KERNEL["tile_m"]))
        verdict = run(Case("blocksparse", problem, Inputs(), KERNEL | {"ctas": str(cta)}))
        assert verdict.outcome == "pass" and set(map(tuple, written)) == {(heads_q - 1,)}, verdict
        written.clear()


@needs_emulator
def test_other_projects_rules_are_not_asked_of_named_ctas() -> None:
    case = Case("blocksparse!key_offset_wraps", PROBLEM, Inputs(), KERNEL | {"ctas": "7,9"})
    verdict = criteria_judge.execute(case, load(case.target), lambda phase, limit: None)
    assert verdict.kernel and criteria_judge.EVIDENCE not in verdict.evidence and criteria_judge.fails_of(verdict) == {}


@needs_emulator
@pytest.mark.parametrize("order", ["bshd", "bhsd"])
def test_the_named_ctas_are_right_wherever_their_rows_are(order) -> None:
    storage = Storage(order)
    inputs = Inputs(q=storage, k=storage, v=storage)
    for ctas in ("0", "7,9,200", "315"):  # rows with few keys, with many, the last tile
        verdict = run(Case("blocksparse", PROBLEM, inputs, KERNEL | {"ctas": ctas}, repeats=2))
        assert verdict.outcome == "pass" and verdict.ratio > 0, verdict


@needs_emulator
def test_a_wrong_answer_says_in_which_rows() -> None:
    verdict = run(Case("blocksparse!sums_not_rescaled", PROBLEM, Inputs(), KERNEL | {"ctas": "3"}, repeats=1))
    assert {(f.tensor, f.kind) for f in verdict.findings} == {("o", "wrong"), ("lse", "wrong")}
    assert all(f.message.startswith("rows ") and "batch 0, head" in f.message for f in verdict.findings)


@needs_emulator
def test_drawn_parts_are_taken_and_most_have_offsets_beyond_31_bits() -> None:
    target = emulated()
    cases = [target.draw_cta_subset(random.Random(n), 2) for n in range(40)]
    assert all(case is not None and refusal(target, case) is None for case in cases)
    sizes = [c.problem.len_k * c.problem.heads_kv * c.problem.dim for c in cases if c is not None]
    assert sum(size > 1 << 31 for size in sizes) > 25
    assert len({c.inputs.k.order for c in cases if c is not None}) == 3


@pytest.mark.nightly
@needs_emulator
def test_an_index_that_wraps_is_found_at_two_million_tokens_and_the_correct_kernel_passes() -> None:
    *_, rows_apart, heads_apart = emulated().seed_cases()
    assert rows_apart.problem.len_q == 2_000_000
    assert run(rows_apart).outcome == run(heads_apart).outcome == "pass"
    wrong = run(msgspec.structs.replace(rows_apart, target="blocksparse!key_offset_wraps"))
    wrapped = [f for f in wrong.findings if f.kind == "32-bit_arithmetic_wrapped_in_an_address"]
    assert wrapped and "accesses k[0, " in wrapped[0].message
    # And what follows from it, where the address is outside of the tensor.
    others = {f.kind for f in wrong.findings} - {wrapped[0].kind}
    assert others <= {"out_of_bounds", "read_of_uninitialised_memory"}


@needs_emulator
def test_room_for_all_scores_is_not_to_be_had_at_two_million_tokens() -> None:
    *_, rows_apart, _ = emulated().seed_cases()
    found = run(msgspec.structs.replace(rows_apart, target="blocksparse!scores_allocated"))
    assert found.outcome == "crash" and {f.kind for f in found.findings} == {"out_of_memory"}, found


@pytest.mark.parametrize(
    ("problem", "variant"),
    [
        (PROBLEM, {"ctas": "316"}),  # outside the grid
        (PROBLEM, {"ctas": "7 9"}),
        (PROBLEM, {"ctas": "7", "mask": "bits"}),
        (PROBLEM, {"ctas": "7", "lists": "padded"}),
        (msgspec.structs.replace(PROBLEM, mask=Causal()), {"ctas": "7"}),
        (msgspec.structs.replace(PROBLEM, backward=True), {"ctas": "7"}),
        (msgspec.structs.replace(PROBLEM, lengths_q=(2_000_000,), lengths_k=(2_000_000,)), {}),  # all CTAs
    ],
)
def test_what_cannot_be_run_in_part_is_refused(problem: Problem, variant: dict) -> None:
    refused = refusal(load("blocksparse"), Case("blocksparse", problem, Inputs(), KERNEL | variant))
    assert refused is not None and refused.kind == "cannot"


def test_a_case_with_ctas_is_json_like_any_other() -> None:
    for case in emulated().seed_cases():
        assert from_json(to_json(case)) == case and refusal(load("blocksparse"), case) is None


@needs_emulator
def test_a_session_has_the_standing_cases_among_its_first_ones_each_once() -> None:
    target, wanted, seen = emulated(), Settings(targets=("blocksparse",), size="small"), list[Case]()
    for index in range(4):
        shard = Shard("blocksparse", index, 8, 3, 8 * index)
        explore(shard, drawer_of(target, wanted), seen.append, seed_cases(shard, target, wanted))
    assert len(seen) == 32
    assert [case for case in seen if case in target.seed_cases()] == list(target.seed_cases())
    assert set(target.seed_cases()) <= set(seen[:20])


def test_rows_that_see_nothing_do_not_hide_the_keys_of_their_neighbours() -> None:
    """With fewer keys than queries the first rows see none; the row after them sees the first key."""
    problem = Problem((131,), (128,), 1, 1, 64, 64, "float16", mask=Window(64, 0, "bottom_right"), backward=False)
    rows = seen(problem, 0, 0, 0, 128)
    assert (rows.key, rows.key_stop) == (0, 125)
    assert [line.count("1") for line in rows.mask.rows[:5]] == [0, 0, 0, 1, 2]
    assert rows.mask.rows[127].count("1") == 65
    none = seen(problem, 0, 0, 0, 3)
    assert all("1" not in line for line in none.mask.rows)
