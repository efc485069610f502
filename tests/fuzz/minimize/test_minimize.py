"""The minimizer on fake bugs: how small, in how many runs, and what it does with hangs, flakes and interruptions."""

import random
from statistics import median

import pytest
from minimize_bugs import Probe, failure, plain, random_case, tail

from fuzz.core.case import Case, Inputs, Storage, normal
from fuzz.core.features import switches
from fuzz.core.signature import explains, signature
from fuzz.core.verdict import Finding, Location, Verdict
from fuzz.minimize import minimize
from fuzz.minimize.edits import edit, replace
from oracles.masks import (
    And,
    Blocks,
    Causal,
    Documents,
    Full,
    Intervals,
    Not,
    Or,
    PerBatch,
    PerHead,
    Tokens,
    TopK,
    Window,
)
from oracles.problem import Bias


def is_small(case):
    p = case.problem
    return p.batch == 1 and p.heads_q <= 2 and max(p.len_q, p.len_k) <= 128


def test_a_tail_bug_in_a_random_case_is_small_within_sixty_runs(capsys):
    """Target: one sequence, one or two heads, at most two tiles, none of the features that it does not need."""
    reached, total = [], []
    for seed in range(30):
        case = random_case(seed)
        probe = Probe(tail)
        found = minimize(case, probe)
        assert found.stopped == "done"
        assert found.runs == probe.runs <= 60
        assert is_small(found.case)
        assert tail(found.case)
        shape = {"heads", "gqa", "len_q:tail", "len_k:tail", "len_q<len_k", "len_k:many_tiles"}
        assert found.needs <= {"backward", *shape}
        assert explains(found.signature, signature(case, failure(case)))
        reached.append(next(step.runs for step in found.steps if is_small(step.case)))
        total.append(found.runs)
    with capsys.disabled():
        print(f"\nruns until small: {min(reached)}–{max(reached)}, median {median(reached)}; ", end="")
        print(f"until nothing is left to try: {min(total)}–{max(total)}, median {median(total)}")


def has(kind, mask):
    of = getattr(mask, "of", ())
    return isinstance(mask, kind) or any(has(kind, part) for part in (of if isinstance(of, tuple) else (of,)))


GRID = Blocks(64, 64, ("FM.F.MF", "F......", "MMMM.FF", ".......", "FFFFFFF", "M..M..M", "F.F.F.F"), seed=9)
RAGGED = plain(((447, 447), (0, 31), (65, 65), (128, 1)), layout="packed", softcap=3.0, mask=Causal())
BUGS = {
    "needs two tiles of keys": (
        plain(dim=128, dim_v=128, softcap=3.0, mask=Causal("bottom_right")),
        lambda c: c.problem.len_k > 64,
        lambda c: c.problem.len_k <= 128 and c.problem.heads_q == 1,
    ),
    "needs a long sequence": (
        plain(((2047, 2047),), mask=Or((Causal(), Window(3, 3)))),
        lambda c: c.problem.len_q >= 300,
        lambda c: c.problem.len_q <= 400,
    ),
    "needs an empty sequence before another": (
        RAGGED,
        lambda c: 0 in c.problem.lengths_q[:-1],
        lambda c: c.problem.batch == 2,
    ),
    "needs softcap and causal": (
        RAGGED,
        lambda c: c.problem.softcap > 0 and has(Causal, c.problem.mask),
        lambda c: is_small(c) and c.problem.mask == Causal() and c.problem.layout == "padded",
    ),
    "needs a broadcast bias and a group": (
        plain(heads=(8, 2), bias=Bias(rows=False, heads=True, dtype="float32"), scale=0.3, mask=GRID),
        lambda c: c.problem.group > 1 and c.problem.bias is not None and not c.problem.bias.rows,
        lambda c: is_small(c) and c.problem.bias == Bias(rows=False, grad=False),
    ),
    "needs an empty row of blocks": (
        plain(mask=GRID, dtype="bfloat16"),
        lambda c: has(Blocks, c.problem.mask) and any(not row.strip(".") for row in c.problem.mask.rows),
        lambda c: is_small(c) and len("".join(c.problem.mask.rows)) <= 1,
    ),
    "needs a partial block beside a full one": (
        plain(mask=GRID, heads=(1, 1)),
        lambda c: has(Blocks, c.problem.mask) and any("FM" in row for row in c.problem.mask.rows),
        lambda c: sum(map(len, c.problem.mask.rows)) <= 4,
    ),
    "needs a dtype": (
        plain(dtype="bfloat16", mask=Causal(), heads=(8, 2)),
        lambda c: c.problem.dtype == "bfloat16",
        lambda c: is_small(c) and c.problem.mask != Causal(),
    ),
    "needs strides of k": (
        replace(plain(softcap=2.0), inputs=Inputs(7, "needle", q=Storage("bshd"), k=Storage("bshd", pad=8))),
        lambda c: c.inputs.k.pad > 0,
        lambda c: is_small(c) and c.inputs == Inputs(distribution="constant", k=Storage(pad=8)),
    ),
    "needs a mask per head": (
        plain(mask=PerHead((Causal(), Not(Causal()), Window(5, 5)))),
        lambda c: has(PerHead, c.problem.mask) and c.problem.heads_q > 1,
        lambda c: is_small(c) and c.problem.heads_q == 2,
    ),
    "needs the window of the second sequence": (
        plain(((100, 100), (200, 200)), mask=PerBatch((Causal(), And((Window(9, 9), Documents((50, 90))))))),
        lambda c: has(Window, c.problem.mask),
        lambda c: is_small(c) and isinstance(c.problem.mask, Window),
    ),
    "needs an option of the target": (
        replace(plain(), variant={"tile": 64, "deterministic": True}),
        lambda c: c.variant.get("deterministic") is True,
        lambda c: is_small(c) and c.variant == {"deterministic": True},
    ),
    "needs intervals": (
        plain(mask=Intervals(tuple(((0, 5), (9, q + 10)) for q in range(447)))),
        lambda c: has(Intervals, c.problem.mask),
        lambda c: is_small(c) and len(c.problem.mask.rows) <= 64,
    ),
    "needs the largest scores of each row": (
        plain(mask=TopK(64, Causal("bottom_right"), seed=9)),
        lambda c: has(TopK, c.problem.mask),
        lambda c: is_small(c) and c.problem.mask in (TopK(1), TopK(1, Causal())),
    ),
    "needs a masked token in the first row": (
        plain(((40, 40),), mask=Tokens(tuple("01" * 20 for _ in range(40)))),
        lambda c: has(Tokens, c.problem.mask) and "0" in c.problem.mask.rows[0],
        lambda c: sum(map(len, c.problem.mask.rows)) <= 80,
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_keeps_what_it_needs_and_little_else(name):
    case, fails, small = BUGS[name]
    assert fails(case)
    probe = Probe(fails)
    found = minimize(case, probe)
    assert fails(found.case)
    assert small(found.case), f"{found.runs} runs, {found.stopped}: {found.case}"
    assert found.runs == probe.runs <= 60
    assert switches(found.case) <= switches(case)


def test_the_result_always_failed_whatever_the_bug():
    """Bugs that are random predicates over the case's content: nothing to follow, and nothing to rely on."""
    for seed in range(20):
        case = random_case(seed)

        def fails(c, seed=seed, case=case):
            return c == case or random.Random(f"{seed}{c.id}").random() < 0.3

        probe = Probe(fails)
        found = minimize(case, probe, max_runs=40)
        assert fails(found.case)
        assert found.runs == probe.runs <= 40


def test_masks_inside_a_mask_lose_what_lies_past_the_sequence():
    inside = PerHead((Tokens(("1" * 90,) * 90), Blocks(8, 8, ("F" * 20,) * 20, seed=7)))
    case = plain(((9, 17),), heads=(2, 2), mask=inside)

    def bug(c):
        mask = c.problem.mask
        return isinstance(mask, PerHead) and has(Tokens, mask) and has(Blocks, mask)

    tokens, blocks = minimize(case, Probe(bug)).case.problem.mask.of
    for mask, (most_q, most_k) in ((tokens, (9, 17)), (blocks, (2, 3))):
        assert len(mask.rows) <= most_q and all(len(row) <= most_k for row in mask.rows)
    assert blocks.seed == 0


def test_the_same_answers_give_the_same_result():
    def once():
        probe = Probe(tail)
        return minimize(random_case(3), probe).steps, probe.asked

    (steps, asked), (steps_again, asked_again) = once(), once()
    assert asked == asked_again
    assert [(s.name, s.case, s.runs) for s in steps] == [(s.name, s.case, s.runs) for s in steps_again]


def test_nothing_is_probed_twice_during_the_search():
    probe = Probe(tail)
    found = minimize(random_case(1), probe)
    searched = probe.asked[: found.steps[-1].runs]
    assert len(set(searched)) == len(searched) - 2  # an early case again, to see whether it fails every time


def test_equal_cases_are_one_candidate_however_they_were_made():
    made = replace(plain(), inputs=Inputs(q=Storage(), do=Storage("bhsd")))
    made = replace(made, problem=replace(made.problem, mask=And((Full(),)).of[0]))
    assert made == plain()
    assert normal(made).id == plain().id


def test_the_verdict_given_saves_a_run():
    case = random_case(2)
    assert minimize(case, Probe(tail), verdict=failure(case)).runs == minimize(case, Probe(tail)).runs - 1


def test_candidates_that_the_target_does_not_take_are_not_probed():
    case = plain(heads=(8, 2), dtype="bfloat16", mask=Causal())
    probe = Probe(tail)
    found = minimize(case, probe, allowed=lambda c: c.problem.dtype != "float32" and c.problem.dim == 64)
    assert {(c.problem.dim, c.problem.dtype) for c in probe.asked} == {(64, "float16"), (64, "bfloat16")}
    assert found.case.problem.dtype == "bfloat16"
    assert "bfloat16" not in found.needs  # float16 fails as well


def test_a_needed_dtype_is_in_the_signature():
    found = minimize(plain(dtype="float16"), Probe(lambda c: c.problem.dtype == "float16"))
    assert "float16" in found.signature.features


def error(case, kind="RuntimeError"):
    return Verdict(case.id, "fail", (Finding("protocol", "raised", "m", place=Location(pattern=kind)),))


@pytest.mark.parametrize(
    ("lengths", "heads"), [(((63, 62),), 4), (((64, 64),), 2), (((1, 90),), 2), (((64, 5), (64, 5)), 1)]
)
def test_an_error_does_not_need_the_shape_that_another_one_may_stand_in_for(lengths, heads):
    """It needs several pairs of sequence and head; which of the two there are several of, and tails, do not matter."""

    def probe(case):
        p = case.problem
        return error(case) if p.softcap and p.batch * p.heads_q > 1 else Verdict(case.id, "pass")

    found = minimize(plain(lengths, (heads, heads), softcap=2.0), probe)
    assert found.signature.features == ("softcap",)
    for other in (plain(((128, 64),), softcap=9.0), plain(((5, 64), (64, 7)), (1, 1), softcap=1.0, dtype="bfloat16")):
        assert explains(found.signature, signature(other, error(other)))
        assert not explains(found.signature, signature(other, error(other, "TypeError")))


def test_an_error_needs_the_shape_without_which_it_is_not_raised():
    found = minimize(plain(), lambda c: error(c) if tail(c) else Verdict(c.id, "pass"))
    assert found.signature.features == ("heads", "len_q:tail", "backward")
    either = minimize(plain(), lambda c: error(c) if c.problem.len_q % 64 or c.problem.len_k % 64 else failure(c))
    assert set(either.signature.features) & {"len_q:tail", "len_k:tail"}


def test_wrong_numbers_keep_the_shape_of_their_case():
    found = minimize(plain(((63, 62),)), Probe(lambda c: c.problem.heads_q > 1))
    assert {"heads", "len_q:tail", "len_k:tail"} <= set(found.signature.features)


def test_other_failures_are_kept_but_not_followed():
    def probe(case):
        if case.problem.heads_q == 1:
            return failure(case, ("o",))
        return failure(case, ("dv",)) if tail(case) else Verdict(case.id, "pass")

    found = minimize(plain(), probe)
    assert found.case.problem.heads_q == 2
    assert [verdict.findings[0].tensor for _, verdict in found.others] == ["o"]


class Clock:
    """Simulated seconds."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def hanging(fails, clock):
    probe = Probe(fails, outcome="hang")

    def run(case):
        verdict = probe(case)
        clock.now += 8.0 if verdict.outcome == "hang" else 0.1
        return verdict

    return run, probe


def test_a_hang_is_reduced_within_its_seconds():
    clock = Clock()
    case = plain(((1023, 1023), (447, 447)), mask=GRID, softcap=2.0)
    run, _ = hanging(lambda c: c.problem.len_q > 64 and has(Blocks, c.problem.mask), clock)
    found = minimize(case, run, verdict=failure(case, outcome="hang"), clock=clock)
    assert found.verdict.outcome == "hang"
    assert found.seconds == clock.now <= 120 + 8
    assert is_small(found.case)
    assert found.signature.kind == "hang"


def test_a_hang_ends_at_its_limit_of_seconds_with_the_best_so_far():
    clock = Clock()
    case = plain(((1023, 1023), (447, 447)), mask=GRID)
    run, _ = hanging(tail, clock)
    found = minimize(case, run, verdict=failure(case, outcome="hang"), max_seconds=20, clock=clock)
    assert found.stopped == "seconds"
    assert 20 <= found.seconds <= 28
    assert tail(found.case)
    assert found.case != case


def flaky(fails, rate, seed, repeats_matter=False):
    rng = random.Random(seed)
    usual = rate

    def run(case):
        chance = 1 - (1 - usual) ** (case.repeats / 3) if repeats_matter else usual
        failed = fails(case) and rng.random() < chance
        return failure(case) if failed else Verdict(case.id, "pass")

    return run


def test_a_failure_that_shows_one_time_in_three_is_reduced_and_its_rate_told():
    for seed in range(20):
        case = random_case(seed)
        found = minimize(case, flaky(tail, 1 / 3, seed), verdict=failure(case))
        assert tail(found.case)
        assert found.runs <= 60
        if found.stopped == "unreproducible":
            continue
        low, high = found.interval
        assert 0 < low < found.failed / found.probed < high <= 1
    sizes = [minimize(random_case(s), flaky(tail, 1 / 3, s), verdict=failure(random_case(s))).case for s in range(20)]
    assert sum(map(is_small, sizes)) >= 15


def test_more_repeats_within_one_run_make_a_flake_certain():
    case = plain(((447, 447),) * 2)
    found = minimize(case, flaky(tail, 1 / 3, 1, repeats_matter=True), verdict=failure(case))
    assert found.case.repeats > case.repeats
    assert is_small(found.case)


def test_a_failure_that_never_comes_back_is_given_up_with_its_rate():
    case = plain()
    found = minimize(case, Probe(lambda c: False), verdict=failure(case))
    assert found.case == case
    assert (found.stopped, found.failed) == ("unreproducible", 1)
    assert found.flaky
    assert found.failed / found.probed < 0.15


def test_a_case_that_does_not_fail_comes_back_with_its_verdict():
    found = minimize(plain(), Probe(lambda c: False))
    assert (found.stopped, found.failed, found.verdict.outcome) == ("passes", 0, "pass")
    assert found.case == plain()


def test_no_runs_at_all_leave_the_case_as_it_is():
    case = random_case(1)
    found = minimize(case, Probe(tail), verdict=failure(case), max_runs=0)
    assert (found.case, found.runs, found.stopped) == (normal(case), 0, "runs")
    with pytest.raises(ValueError, match="max_runs"):
        minimize(case, Probe(tail), max_runs=0)


def test_a_refusal_that_the_kernel_forgot_is_reduced_among_refused_cases():
    case = random_case(2)
    assert is_small(minimize(case, Probe(tail), allowed=lambda c: False).case)


def test_the_report_says_what_it_cost_and_how_often_it_fails():
    case = plain()
    assert "fails every time (5 of 5); nothing smaller fails" in minimize(case, Probe(tail)).report()
    assert "fails in 1 of 12 probes" in minimize(case, Probe(lambda c: False), verdict=failure(case)).report()


@pytest.mark.parametrize("after", [1, 2, 5, 9, 14])
def test_an_interruption_gives_the_best_so_far(after):
    case = random_case(4)
    probe = Probe(tail)

    def run(c):
        if probe.runs == after:
            raise KeyboardInterrupt
        return probe(c)

    found = minimize(case, run)
    assert found.stopped == "interrupted"
    assert found.case in probe.asked
    assert tail(found.case)


def test_an_interruption_before_the_first_failure_is_passed_on():
    def run(case):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        minimize(plain(), run)


@pytest.mark.parametrize("runs", [1, 2, 3, 10, 20])
def test_the_limit_of_runs_holds(runs):
    probe = Probe(tail)
    found = minimize(random_case(5), probe, max_runs=runs)
    assert found.runs == probe.runs <= runs
    assert tail(found.case)


def test_progress_is_told_step_by_step():
    seen = []
    found = minimize(random_case(6), Probe(tail), progress=seen.append)
    assert tuple(seen) == found.steps
    assert seen[-1].case == found.case


def test_it_takes_a_case_that_no_strategy_drew():
    case = Case("fake", edit(plain(), lengths_q=(1,) * 3, lengths_k=(5, 0, 70000)).problem, repeats=1)
    found = minimize(case, Probe(lambda c: c.problem.len_k > 1000))
    assert found.case.problem.batch == 1
    assert found.case.problem.len_k <= 2000
