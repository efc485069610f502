"""Cases that look for mutants of Hopper's kernels: those of problems that few sessions draw."""

import json
import re
from collections import Counter

import pytest
import torch
from covering import nightly_unless
from msgspec.structs import replace as with_fields

from fuzz.core.case import Case
from fuzz.core.refusal import refusal
from fuzz.core.target import DeviceError
from fuzz.judging.judge import execute
from fuzz.score.ptx_mutants.bench import bench
from fuzz.score.ptx_mutants.configs import RUN, WGMMA, builds_of, cases_of, made, size, split_passes
from fuzz.score.ptx_mutants.first_steps import may_follow_nothing
from fuzz.score.ptx_mutants.survey import Survey, no_limit
from fuzz.score.ptx_mutants.unshared_mbarriers import is_seen_at_barrier
from fuzz.targets.blocksparse.block_lists import blocks_of
from fuzz.targets.blocksparse.devices import arch_without_gpu, toolchain_there
from fuzz.targets.blocksparse.emulated import EmulatedBlockSparse
from fuzz.tensors.arena import build
from kernels.blocksparse.launch.by_length import order_of_keys, order_of_queries
from kernels.blocksparse.launch.forward import EMULATED
from oracles.masks import Intervals
from oracles.problem import Problem

pytestmark = [
    pytest.mark.skipif(not toolchain_there(), reason="needs the toolchain"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the emulated target steps back where there is a GPU"),
]
ORDERED, BAND, *_, INTERVALS, FULL, FULL_ORDERED, NESTED = WGMMA


@pytest.mark.parametrize("chosen", WGMMA, ids=lambda one: one.name)
def test_cases_made_for_a_configuration_are_those_of_its_kernels(chosen):
    target, keys = EmulatedBlockSparse(), {build.key for build in builds_of(chosen).values()}
    for case in made(chosen):
        assert refusal(target, case) is None
        assert keys <= {build.key for build in target.builds(case, arch_without_gpu("emulator"))}


def test_three_packed_sequences_or_more_are_launched_in_their_order():
    cases = cases_of(BAND, 60, 3)
    several = [case for case in cases if size(BAND, case.problem) == 7]
    assert all(case.problem.batch >= 3 for case in several) and all(case in cases for case in made(BAND))
    with_order = [case for case in several if case.problem.backward and blocks_of(case).lpt is not None]
    assert len(with_order) >= 3
    for case in with_order:
        blocks = blocks_of(case)
        q, k = (torch.empty(sum(x), 1, 8, device="meta") for x in (case.problem.lengths_q, case.problem.lengths_k))
        assert order_of_queries(q, blocks) is not None
        assert blocks.schedule.positions is not None or order_of_keys(k, blocks) is not None


def test_a_block_of_keys_has_full_blocks_between_partial_ones():
    _, window, *_ = made(ORDERED)
    lists = blocks_of(window).backward
    partial, full = (one.index[one.begin[0, 0, 0] :][: one.count[0, 0, 0]] for one in (lists.partial, lists.full))
    assert len(full) >= 2 and partial.min() < full.min() and full.max() < partial.max()


@pytest.mark.parametrize(
    "chosen", [one for one in WGMMA if one.mask in ("bits", "intervals")], ids=lambda one: one.name
)
def test_a_tile_of_queries_has_four_partial_blocks_of_keys(chosen):
    counts = [int(blocks_of(case).forward.partial.count.max()) for case in made(chosen) if not case.problem.len_k % 128]
    assert max(counts) >= 4


def test_rows_have_many_intervals_that_end_in_all_bits_of_a_block():
    """Ends of a row's second to fifth interval, by words of 32 bits: a mutant of those in a second word was missed."""
    (case,) = (one for one in made(INTERVALS) if isinstance(one.problem.mask, Intervals))
    rows = case.problem.mask.rows
    assert {len(row) for row in rows} == {5}
    for number in range(1, 5):
        ends = [row[number][1] % 128 for row in rows]
        assert all(len([end for end in ends if end // 32 == word]) > 2 for word in range(4))


@pytest.mark.parametrize(
    "chosen", [one for one in WGMMA if one.mask in ("bits", "intervals")], ids=lambda one: one.name
)
@pytest.mark.nightly
def test_all_cases_made_for_a_configuration_are_among_the_listed_ones(chosen):
    cases = cases_of(chosen, 60, 3)
    assert len(cases) == 60 and all(case in cases for case in made(chosen))


def test_heads_are_launched_in_different_orders_after_an_empty_sequence():
    *_, empty = made(INTERVALS)
    assert empty.problem.lengths_q[0] == 0
    rows = blocks_of(empty).lpt.rows[1].tolist()
    assert rows[0] != rows[1] == rows[2]


def test_the_first_tiles_are_those_of_several_sequences():
    """The emulated GPU has three CTAs. The order of the sequences gives the third CTA the second sequence's first
    tile."""
    _, _, short, *_ = made(BAND)
    blocks = blocks_of(short)
    q = torch.empty(sum(short.problem.lengths_q), 1, 8, device="meta")
    assert order_of_queries(q, blocks) is not None and blocks.lpt.queries.start.tolist()[:2] == [0, EMULATED - 1]


@pytest.mark.nightly
def test_a_number_is_not_taken_where_there_is_no_counter():
    """A CTA of a launch with no more tiles than CTAs, whose tile has no rows: without the look at their numbers it
    would take a tile's number from a counter at address 0."""
    (case,) = (one for one in made(BAND) if 0 in one.problem.lengths_q and one.problem.batch <= EMULATED)
    forward = BAND.kernels(Survey(1))["forward"]
    looks = re.compile(
        r"setp\.ge\.s32 \t(%p\d+), (%r\d+), (%r\d+);\n\tmov\.b32 \t(%r\d+), \3;\n\t(@\1 bra \t\S+;)\n"
        r"\tatom\.global\.add\.u32 \t(%r\d+), [^\n]*\n\tadd\.s32 \t\4, \6, \2;"
    )
    first = next(looks.finditer(forward.text))
    unasked = forward.text[: first.start(5)] + ";" + forward.text[first.end(5) :]
    place = bench(BAND.target)
    assert execute(case, place.target, no_limit).outcome == "pass"
    with place.running({forward.key: unasked}):
        verdict = execute(case, place.target, no_limit)
    assert [(one.oracle, one.kind) for one in verdict.findings] == [("emulator", "address_of_no_tensor")]


@pytest.mark.nightly
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_a_tile_that_begins_where_its_sequence_ends_gives_the_same_bits(layout):
    """The argument "a tile without rows" of tile_arguments.py, of every look at once."""
    forward, tile = INTERVALS.kernels(Survey(1))["forward"], INTERVALS.tile_m
    first = r"(shl\.b32 \t(%r\d+), %r\d+, [67];\n\tsetp\.)lt(\.s32 \t%p\d+, \2, %r\d+;\n\tor\.pred)"
    further = first.replace("lt", "ge").replace("or", "and")
    text, looks = re.subn(first, r"\1le\3", forward.text)
    text, others = re.subn(further, r"\1gt\3", text)
    assert looks and others
    lengths = (tile, 3 * tile + 5, 2 * tile, 0)
    shape = Problem(lengths, (130,) * 4, 2, 1, 56, 56, "float16", layout=layout, backward=False)
    case = Case("blocksparse", shape, variant=INTERVALS.options | {"slots": 2}, repeats=1)
    answers, executed = [], []
    for instead in (forward.text, text):
        given, target = build(case, "cpu").tensors(), bench(INTERVALS.target).target
        done: list[int] = []
        with bench(INTERVALS.target).running(
            {forward.key: instead}, watch=lambda *_, to=done: to.append(_[2].executed)
        ):
            target.prepare(case, given)
            outputs = target.run(case, given).outputs
        answers.append({name: one.clone() for name, one in outputs.items()})
        executed.append(sum(done))
    assert all(torch.equal(answers[1][name], one) for name, one in answers[0].items())
    assert (executed[1] > executed[0]) == (layout == "padded")  # such a tile is taken there


@pytest.mark.nightly
def test_a_first_step_whose_rows_have_no_scores_may_update_them():
    """The argument "a first step without scores" of proven_arguments.py holds for two warps whose rows begin with
    scores of minus infinity, or with ones that are not numbers. A trap in place of the update shows that they come to
    it."""
    forward = FULL_ORDERED.kernels(Survey(1))["forward"]
    update = re.compile(
        r"\tmov\.b32 \t%r\d+, 0fFF800000;\n(?:\tmov\.b32 [^\n]*\n)+\t(@(%p\d+) bra \t\S+;)\n\tsetp\.eq\.f32"
    )
    branch = next(update.finditer(forward.text))
    assert may_follow_nothing(forward.text, forward.text[: branch.start(1)].count("\n") + 1)
    shape = Problem((512,), (500,), 2, 1, 120, 120, "float16", backward=False)
    case = Case("blocksparse", shape, variant=FULL_ORDERED.options, repeats=1)
    answers = {}
    for instead in ("", f"@{branch[2]} trap;", ";"):
        text = forward.text[: branch.start(1)] + (instead or branch[1]) + forward.text[branch.end(1) :]
        given = build(case, "cpu").tensors()
        given.k[:, :, :128] = given.k[:, :, :128].abs() + 1
        given.q[:, :, :64], given.q[:, :, 64:80, 0] = -torch.inf, torch.nan
        target = bench(FULL_ORDERED.target).target
        with bench(FULL_ORDERED.target).running({forward.key: text}) as running:
            target.prepare(case, given)
            if "trap" in instead:
                with pytest.raises(DeviceError):
                    target.run(case, given)
            else:
                answers[instead] = dict(target.run(case, given).outputs.items())
        assert running.used
    for name, clean in answers[""].items():
        assert torch.equal(clean.nan_to_num(7.0), answers[";"][name].nan_to_num(7.0)) and clean.isnan().any()


def test_kernels_of_a_full_mask_run_in_clusters_and_split_tiles():
    tuning = {kind: dict(json.loads(build.options)["tuning"]) for kind, build in builds_of(FULL).items()}
    assert tuning["forward"] == {"cluster": 2, "splits": 1} and tuning["backward"] == {"runs": 1, "splits": 1}
    assert [one for one in WGMMA if one.splits] == [FULL]
    ordered = json.loads(builds_of(FULL_ORDERED)["backward"].options)
    assert dict(ordered["tuning"]) == {"runs": 1} and ordered["deterministic"]


@pytest.mark.parametrize("chosen", [BAND, NESTED], ids=lambda one: one.name)
def test_heads_have_lists_of_their_own(chosen):
    *_, case = made(chosen)
    lists = blocks_of(case).forward
    counts = (lists.partial.count + lists.full.count)[0].tolist()
    assert counts == [[1, 2, 3], [0, 1, 2]] * 2 and lists.nested == chosen.nested and case.problem.batch == 2


@pytest.mark.parametrize("chosen", [ORDERED, INTERVALS], ids=lambda one: one.name)
def test_heads_and_sequences_have_lists_of_their_own(chosen):
    """A list that a neighbouring stride leads to is another one."""
    *_, case = made(chosen)
    count = blocks_of(case).forward.full.count
    assert count.shape[:2] == (2, 3) and len(set(map(tuple, count.flatten(0, 1).tolist()))) == 3


@pytest.mark.nightly
def test_the_stride_between_sequences_of_lists_is_not_that_between_heads():
    forward = NESTED.kernels(Survey(1))["forward"]
    *_, case = made(NESTED)
    alone = with_fields(case, problem=with_fields(case.problem, backward=False), repeats=1)
    place = bench(NESTED.target)
    assert execute(alone, place.target, no_limit).outcome == "pass"
    with place.running({forward.key: forward.text.replace("_param_40]", "_param_39]")}) as running:
        assert execute(alone, place.target, no_limit).outcome == "fail"
    assert running.used


@pytest.mark.parametrize(
    ("chosen", "alone"),
    [nightly_unless(False, FULL, False), (NESTED, False), (ORDERED, True), nightly_unless(False, INTERVALS, True)],
    ids=str,
)
def test_mbarriers_are_seen_at_the_barrier_of_a_cta_or_of_a_cluster(chosen, alone):
    text = chosen.kernels(Survey(1))["forward"].text
    fence = text[: text.index("fence.mbarrier_init")].count("\n") + 1
    assert is_seen_at_barrier(text, fence)
    assert ("barrier.cluster.arrive;" in text) != alone
    weaker = text.replace("barrier.cluster.arrive;", "barrier.cluster.arrive.relaxed;")
    assert is_seen_at_barrier(weaker, fence) == alone


@pytest.mark.parametrize("chosen", [FULL, BAND], ids=lambda one: one.name)
def test_scores_of_some_rows_are_so_low_that_a_score_of_zero_is_infinite(chosen):
    (case,) = (one for one in made(chosen) if one.inputs.distribution == "large")
    given = build(case, "cpu").tensors()
    scores = torch.einsum("bhid,bhjd->bhij", given.q.float(), given.k.float()) * case.problem.scale
    low = scores.amax(-1) < -89  # exp(89) is more than a float32 holds
    assert low.any() and not low.all()


def test_rows_of_a_full_mask_are_turned_so_that_tiles_of_two_heads_are_adjacent():
    _, case, *_ = made(FULL_ORDERED)
    blocks = blocks_of(case)
    count, index = blocks.backward.full.to_padded(blocks.m_blocks)
    (row,) = set(map(tuple, index.flatten(0, 2).tolist()))
    assert row[-1] + 1 == row[0] and sorted(row) == list(range(6)) and (count == 6).all()
    assert case.problem.group == 2 and blocks.schedule.group_split == 1


def test_tiles_of_a_forward_pass_are_split_where_keys_end_within_a_block_and_where_not():
    few, many, whole = ((512,), (200,)), ((512,), (500,)), ((512,), (512,))
    for number, lengths in ((8, few), (9, many), (10, whole)):
        assert size(FULL_ORDERED, Problem(*lengths, 2, 1, 128, 128, "float16")) == number
        assert size(BAND, Problem(*lengths, 2, 1, 128, 128, "float16")) < 8
    assert size(FULL_ORDERED, Problem((512,), (256,), 3, 1, 128, 128, "float16")) < 8


@pytest.mark.nightly
def test_full_masks_with_ordered_adds_have_runs_and_whole_tiles_of_keys():
    cases = cases_of(FULL_ORDERED, 60, 3)
    assert len(cases) == 60 and all(case in cases for case in made(FULL_ORDERED))
    sizes = Counter(size(FULL_ORDERED, case.problem) for case in cases)
    assert all(sizes[number] >= 4 for number in (8, 9, 10))
    assert all(case.problem.len_k % 128 == 0 for case in cases if case.problem.backward)
    assert sum(case.problem.len_q >= RUN and case.problem.len_k > 128 for case in cases) >= 4


@pytest.mark.nightly
def test_tiles_of_a_full_mask_are_split():
    cases = cases_of(FULL, 40, 3)
    passes = Counter(split_passes(FULL, case.problem) for case in cases)
    assert len(cases) == 40 and min(passes.values()) >= 3 and len(passes) == 3
    assert (False, False) not in passes and all(case in cases for case in made(FULL))
