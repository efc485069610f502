"""Target dynamic_mask: the ways to say a mask are one problem, and a script says what the target did."""

import contextlib
import os
import random
import subprocess
import sys

import pytest
import torch
from msgspec.structs import replace

from fuzz.core.case import Case, Inputs
from fuzz.core.refusal import refusal
from fuzz.core.target import DeviceError, Tensors
from fuzz.generate.cases import drawer
from fuzz.generate.masks import Sizes, native_mask
from fuzz.judging.judge import execute
from fuzz.targets.dynamic_mask import long_lists, sequences_alone
from fuzz.targets.dynamic_mask.call import OPTIONS, SHAPES, arguments, calls, direction, says, tail_bits, useful, way_of
from fuzz.targets.dynamic_mask.catalog import CLASSES
from fuzz.targets.dynamic_mask.counters import check_tiles, mask_of
from oracles.masks import And, Blocks, Causal, Full, Intervals, Not, PerBatch, PerHead, Prefix, TopK, Window
from oracles.problem import Bias, Problem, dense_mask

DEVICE = torch.device("cpu")
TOP = Problem((9, 9), (40, 40), 4, 2, 16, 16, "float16", mask=TopK(3, Causal("bottom_right")))
KV_BIAS = replace(TOP, bias=Bias(kv_heads=True))


def said(problem, bias=None, **options):
    return arguments(problem, bias, DEVICE, OPTIONS.defaults | options)


def test_a_causal_mask_is_a_flag_and_a_top_k_of_it_a_mask_beside_a_flag():
    causal = replace(TOP, mask=Causal("bottom_right"))
    assert said(causal)["causal"] == "bottom_right" and "mask" not in said(causal)
    assert "causal" not in said(TOP) and said(TOP, mask="both")["causal"] == "bottom_right"
    assert torch.equal(said(TOP, mask="both")["mask"], dense_mask(TOP))
    assert direction(And((Window(2, 2), Causal()))) == "top_left" and direction(Full()) is None


def test_a_flag_beside_a_mask_takes_no_key_away():
    ragged = Problem((4, 8), (3, 2), 1, 1, 16, 16, "bfloat16", mask=Causal("bottom_right"))
    assert "both" not in says(ragged)  # the flag's shift is 3 - 8, the first sequence's 3 - 4
    assert "both" in says(replace(ragged, lengths_k=(3, 7)))
    assert "both" in says(replace(ragged, layout="packed")) and "both" in says(replace(ragged, mask=Causal()))


def test_words_hold_the_mask():
    pytest.importorskip("triton")
    from kernels.dynamic_mask import unpack_mask

    words = said(TOP, mask="bits")["mask"]
    assert words.dtype == torch.int32 and torch.equal(unpack_mask(words, 40), dense_mask(TOP))
    last = words[..., -1]  # of keys 32 to 39, and of 24 bits that do not matter
    assert torch.equal(last >> 8, torch.where(last == 0, 0, -1)) and (last == 0).any() and (last != 0).any()
    assert tail_bits(replace(TOP, lengths_k=(64, 64))) == 0


def test_the_kernels_own_selection_is_the_mask_of_the_case():
    pytest.importorskip("triton")
    for mask in (TOP.mask, TopK(3), TopK(50, Causal()), TopK(2, Causal("bottom_right"), sequence=0, head=1)):
        problem = replace(TOP, lengths_q=(50, 50), mask=mask)
        found = said(problem, mask="selected")["mask"]
        assert found.shape[1] == 2 and "selected" in says(problem)
        assert torch.equal(found.repeat_interleave(2, 1).expand(2, 4, 50, 40), dense_mask(problem).expand(2, 4, -1, -1))
    assert "selected" not in says(replace(TOP, lengths_k=(40, 30))) + says(replace(TOP, mask=Causal()))


@pytest.mark.parametrize("way", [{"mask": "bias"}, {"hidden": "nan"}], ids=str)
def test_a_bias_per_kv_head_is_hidden_where_no_query_head_of_its_group_sees(way):
    bias = torch.zeros(1, 2, 9, 40, dtype=torch.float16)
    hidden = ~said(KV_BIAS, bias, **way)["bias"].isfinite()
    assert hidden.shape == (2, 2, 9, 40)
    assert torch.equal(hidden, ~dense_mask(KV_BIAS).unflatten(1, (2, 2)).any(2))


def test_bools_and_a_bias_in_turn_are_the_mask_together():
    bias = torch.zeros(1, 2, 9, 40, dtype=torch.float16)
    given = said(KV_BIAS, bias, mask="alternating")
    by_bias = given["bias"].isfinite().repeat_interleave(2, 1)
    assert by_bias[..., 1::2, :].all() and given["mask"][..., ::2, :].all()
    seen = dense_mask(KV_BIAS).unflatten(1, (2, 2)).any(2).repeat_interleave(2, 1)  # of a KV head's bias
    both = given["mask"] & by_bias
    assert torch.equal(both[..., 1::2, :], dense_mask(KV_BIAS)[..., 1::2, :])
    assert torch.equal(both[..., ::2, :], seen[..., ::2, :])


@pytest.mark.parametrize("how", ["auto", "bits"])
@pytest.mark.parametrize(
    "bias", [Bias(kv_heads=True), Bias(rows=False), Bias(batch=True, heads=True), Bias(heads=False)], ids=str
)
def test_keys_that_no_query_sees_are_hidden_by_the_bias_and_kept_by_the_mask(bias, how):
    if how == "bits":
        pytest.importorskip("triton")
    sparse = Intervals(tuple(((3 * row, 3 * row + 1),) if row % 2 else () for row in range(9)))
    problem = replace(TOP, mask=PerHead((sparse, Blocks(16, 16, ("FM.",)))), bias=bias)
    values = torch.zeros(problem.shapes()["bias"], dtype=torch.float16)
    given = said(problem, values, hidden="keys", mask=how)
    by_bias, mask = given["bias"].isfinite(), mask_of(given, problem)
    if bias.kv_heads:
        by_bias = by_bias.repeat_interleave(2, 1)
    assert torch.equal((mask & by_bias).expand(2, 4, -1, -1), dense_mask(problem).expand(2, 4, -1, -1))
    hidden = ~by_bias.expand(2, 4, 9, 40)
    assert hidden.any() and (hidden.all(2) == hidden.any(2)).all() and mask.expand(2, 4, -1, -1)[hidden].all()
    assert (mask & ~by_bias).any(-1)[..., 0].any()  # row 0 has keys by the mask, and none by both
    assert not (mask & by_bias).any(-1)[..., 0].all()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_mask_in_any_shape_is_the_same_mask(shape):
    mask = said(TOP, shape=shape)["mask"]
    assert mask.dim() == 4 and torch.equal(mask.expand(2, 4, 9, 40), dense_mask(TOP))
    bias = torch.randn(1, 2, 9, 40, dtype=torch.float16)
    assert torch.equal(said(KV_BIAS, bias, shape=shape)["bias"].expand(2, 2, 9, 40), bias.expand(2, -1, -1, -1))


def test_every_way_that_is_drawn_is_useful_and_taken():
    target = CLASSES["interpreter"]()
    for problem in (TOP, KV_BIAS, replace(TOP, mask=Full()), replace(KV_BIAS, backward=False)):
        ways = target.variants_for(problem)
        assert {} in ways and len(ways) > 3
        for way in ways:
            assert useful(problem, OPTIONS.defaults | way)
            assert refusal(target, Case(target.name, problem, variant=way)) is None
        assert not useful(problem, OPTIONS.defaults | {"mask": "nothing"})
    assert {"bias", "alternating"} <= set(says(KV_BIAS)) and not {"bias", "alternating"} & set(says(TOP))
    assert "bias" not in says(replace(KV_BIAS, mask=PerHead((Full(), Causal()))))


@pytest.mark.parametrize("how", ["auto", "bool", "bits"])
@pytest.mark.parametrize("mask", [Full(), TopK(3, Causal())], ids=str)
def test_keys_in_two_calls_are_all_of_them_once(how, mask):
    pytest.importorskip("triton")
    problem = replace(TOP, lengths_k=(130, 130), mask=mask)
    parts = calls(problem, None, DEVICE, OPTIONS.defaults | {"keys": "split", "mask": how})
    masks = [mask_of(part, problem) for part in parts]
    assert torch.equal(
        (masks[0].int() + masks[1].int()).expand(2, 4, 9, 130).bool(), dense_mask(problem).expand(2, 4, 9, -1)
    )
    assert not (masks[0] & masks[1]).any() and not masks[0][..., 64:128].any() and not masks[1][..., :64].any()


def test_keys_in_two_calls_need_two_tiles_and_a_gradient():
    long = replace(TOP, lengths_k=(130, 130))
    split = OPTIONS.defaults | {"keys": "split"}
    assert useful(long, split) and not useful(long, split | {"mask": "bias"})
    assert not useful(TOP, split) and not useful(replace(long, backward=False), split)
    assert not useful(replace(long, bias=Bias(cols=False)), split)
    target, variant = CLASSES["interpreter"](), {"keys": "split"}
    known = {name: Case(target.name, long, Inputs(distribution=name), variant) for name in ("normal", "one_hot")}
    assert refusal(target, known["normal"]) is None and refusal(target, known["one_hot"]) is not None


def test_a_session_climbs_to_masks_with_empty_tiles_among_others():
    target = CLASSES["interpreter"]()
    shares = {}
    for name, mask in (("full", Full()), ("causal", Causal()), ("half", Blocks(64, 64, ("F.", ".F")))):
        problem = replace(TOP, lengths_q=(128,), lengths_k=(128,), mask=mask)
        (shares[name],) = target.climbs(Case(target.name, problem)).values()
    assert shares == {"full": 0.0, "causal": 0.5, "half": 1.0}


HALVES = replace(TOP, lengths_q=(128,), lengths_k=(100,), heads_q=1, heads_kv=1, mask=Blocks(64, 64, ("F.", "FF")))


COUNTS = {  # visited and skipped tiles of both rows of tiles: what is said of them
    ((1, 1), (2, 0)): "",
    ((1, 1), (1, 1)): "",  # one too few: the answers show that
    ((2, 0), (2, 0)): "4 tiles of scores were visited, of which 3 hold a pair",
    ((1, 0), (2, 0)): "add up to 3, and there are 4",
}


@pytest.mark.parametrize("how", ["auto", "bits"])
@pytest.mark.parametrize("counts", COUNTS)
def test_counts_of_tiles_are_compared_with_the_mask(how, counts):
    if how == "bits":
        pytest.importorskip("triton")
    expected = pytest.raises(DeviceError, match=COUNTS[counts]) if COUNTS[counts] else contextlib.nullcontext()
    with expected:
        check_tiles(torch.tensor([[counts]]), HALVES, said(HALVES, mask=how), 64, 64)


def test_causality_ends_a_row_of_tiles_and_a_sequence_its_own():
    causal = said(replace(TOP, mask=Causal("bottom_right"), lengths_q=(100,), lengths_k=(130,)))
    problem = replace(HALVES, lengths_q=(100, 5), lengths_k=(130, 64), layout="packed")
    tiles = torch.tensor([[[(2, 0), (3, 0)]], [[(1, 0), (0, 0)]]])
    check_tiles(tiles, problem, {"causal": causal["causal"]}, 64, 64)


def test_long_lists_are_longer_than_a_warp_adds_up_and_some_than_a_turn_and_one_to_all_tiles_hold_a_pair():
    target, longest, kinds = CLASSES["emulator"](), set(), set()
    few, turns, kept_of_all = set(), 0, []
    for seed in range(80):
        case = target.draw_long_lists(random.Random(seed), 2)
        assert refusal(target, case) is None
        p = case.problem
        if len(p.lengths_q) > 1:
            continue
        longest.add(max(-(-p.len_q // 64), -(-p.len_k // 64)))
        if isinstance(p.mask, Blocks):
            kept = sum(row.count("F") + row.count("M") for row in p.mask.rows)
        else:
            kept = sum(map(len, p.mask.rows))  # pairs, each in a tile of its own
            assert int(dense_mask(p).sum()) == kept
        assert 0 < kept <= 2 * max(long_lists.KEPT)
        kept_of_all.append(kept / max(-(-p.len_q // 64) * -(-p.len_k // 64), 1))
        kinds.add(type(p.mask))
        few.add(min(p.len_q, p.len_k))
        if max(p.len_q, p.len_k) > 64 * long_lists.TURN:
            pairs = dense_mask(p)[0, 0].nonzero()[:, int(p.len_k > p.len_q)]
            assert int(pairs.max()) >= 64 * long_lists.TURN
            turns += 1
    assert min(longest) > 64 and max(longest) > 256 and kinds == {Blocks, Intervals}
    assert min(kept_of_all) < 0.02 and sum(share > 0.5 for share in kept_of_all) > len(kept_of_all) / 5
    assert turns > 5 and len(few) > 2 * len(long_lists.FEW)


def test_cases_of_16_short_sequences_have_16_remainders_and_padded_ones_a_call_for_each():
    target, layouts = CLASSES["emulator"](), set()
    for seed in range(80):
        case = target.draw_long_lists(random.Random(seed), 3)
        assert refusal(target, case) is None
        p = case.problem
        if len(p.lengths_q) > 1:
            assert {len({n % 64 for n in lengths}) for lengths in (p.lengths_q, p.lengths_k)} == {16}
            assert (case.variant.get("sequences") == "alone") == (p.layout == "padded") and case.repeats == 1
            layouts.add(p.layout)
    assert layouts == {"padded", "packed"}


def test_of_a_session_a_twelfth_has_gradients_of_lse_and_a_third_tensors_in_orders_of_their_own():
    target = CLASSES["emulator"]()
    found = [drawer(target)(random.Random(seed)) for seed in range(600)]
    assert all(refusal(target, case) is None for case in found)
    given = [OPTIONS.of(case) for case in found]
    assert 36 <= sum(one["keys"] == "split" for one in given) <= 80
    assert sum(one["sequences"] == "alone" for one in given) >= 15
    assert sum(way_of(case.problem, one) == "columns" for case, one in zip(found, given, strict=True)) >= 5
    stores = [(case.inputs.q, case.inputs.k, case.inputs.v, case.inputs.do) for case in found]
    assert sum(len({one.order for one in some}) > 1 for some in stores) >= 150


ALONE = replace(TOP, lengths_q=(5, 9, 1), lengths_k=(40, 3, 64), mask=PerBatch((Causal(), TopK(3, Causal()))))


def test_sequences_alone_are_views_of_the_batch_beside_nan_and_joined_with_empty_padding():
    q, k = torch.randn(3, 4, 9, 16), torch.randn(3, 2, 64, 16)
    bias = torch.randn(3, 1, 1, 64)
    problem = replace(ALONE, bias=Bias(batch=True, heads=False, rows=False))
    parts = list(sequences_alone.parts_of(problem, Tensors(q, k, k, q, bias)))
    for b, (of, part) in enumerate(parts):
        n, m = problem.lengths_q[b], problem.lengths_k[b]
        assert (of.lengths_q, of.lengths_k, of.batch) == ((n,), (m,), 1)
        assert torch.equal(part.q, q[b : b + 1, :, :n]) and torch.equal(part.k, k[b : b + 1, :, :m])
        assert torch.equal(part.bias, bias[b : b + 1, ..., :m]) and torch.equal(part.do, part.q)
        expected = dense_mask(problem)[b : b + 1, :, :n, :m]
        assert torch.equal(dense_mask(of).expand_as(expected), expected)
        assert n == 9 or part.q._base[b, 0, n].isnan().all()
    out, lse = sequences_alone.joined(problem, Tensors(q, k, k, q, bias), lambda of, part: (part.q, part.q[..., 0]))
    for b, n in enumerate(problem.lengths_q):
        assert torch.equal(out[b, :, :n], q[b, :, :n]) and not out[b, :, n:].any()
        assert lse[b, :, n:].isneginf().all()


def test_sequences_alone_need_tokens_and_a_bias_of_their_own():
    alone = OPTIONS.defaults | {"sequences": "alone"}
    assert useful(ALONE, alone) and not useful(ALONE, alone | {"mask": "selected"})
    for other in (
        replace(ALONE, layout="packed"),
        replace(ALONE, lengths_q=(0, 9, 1)),
        replace(ALONE, bias=Bias()),
        replace(TOP, lengths_q=(9,), lengths_k=(40,)),
    ):
        assert not useful(other, alone)
    assert useful(replace(ALONE, bias=Bias(grad=False)), alone)


@pytest.mark.parametrize("mask", [Not(Prefix(7)), PerBatch((Not(Prefix(7)), Not(Prefix(40))))], ids=str)
def test_padding_to_the_left_is_a_flag_and_minus_infinity_in_the_bias(mask):
    both = isinstance(mask, PerBatch)
    problem = replace(TOP, mask=And((Causal("bottom_right"), mask)), bias=Bias(batch=both, heads=False, rows=False))
    given = said(problem, torch.randn(2 if both else 1, 1, 1, 40))
    assert "mask" not in given and given["causal"] == "bottom_right"
    flag = dense_mask(replace(problem, mask=Causal("bottom_right")))
    assert torch.equal((flag & given["bias"].isfinite()).expand(2, 1, 9, 40), dense_mask(problem).expand(2, 1, 9, 40))
    assert "mask" in said(problem, torch.randn(2 if both else 1, 1, 1, 40), mask="bool")
    for other in (replace(problem, bias=None), replace(problem, bias=Bias(batch=both, cols=False))):
        assert way_of(other, OPTIONS.defaults) == "auto"
    assert way_of(replace(problem, bias=Bias(batch=False)), OPTIONS.defaults) == ("auto" if both else "columns")
    assert not useful(problem, OPTIONS.defaults | {"hidden": "keys"})


@pytest.mark.compiled_triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run on the GPU")
@pytest.mark.parametrize("way", [pytest.param({"sequences": "alone"}, marks=pytest.mark.nightly), {}], ids=str)
def test_a_loop_over_a_batch_and_padding_to_the_left_are_right_on_the_emulated_gpu(way):
    mask = Causal("bottom_right") if way else And((Causal(), Not(Prefix(3))))
    lengths = ((5, 9, 17), (5, 30, 64)) if way else ((17, 17), (30, 30))
    problem = Problem(*lengths, 2, 1, 32, 32, "float16", mask=mask, bias=Bias(batch=True, heads=False, rows=False))
    target = CLASSES["emulator"]()
    verdict = execute(Case(target.name, problem, variant=way, repeats=2), target, lambda phase, seconds: None)
    assert verdict.outcome == "pass", verdict.findings


def test_masks_of_single_pairs_have_tiles_that_one_pair_decides():
    mask = native_mask(random.Random(4), None, ("pairs",), Sizes((130,), (200,), 1))
    tiles = torch.nn.functional.pad(
        dense_mask(replace(TOP, lengths_q=(130,), lengths_k=(200,), mask=mask)), (0, 56, 0, 62)
    )
    pairs = tiles[0, 0].unflatten(1, (4, 64)).unflatten(0, (3, 64)).sum((1, 3))
    assert pairs.max() == 1 and 3 <= int(pairs.sum()) < 12


def test_sums_in_any_order_may_differ():
    target = CLASSES["interpreter"]()
    assert target.may_differ(Case(target.name, TOP, variant={"splits": 2, "deterministic": False})) == {"dk", "dv"}
    assert target.may_differ(Case(target.name, TOP, variant={"splits": 2})) == frozenset()


@pytest.mark.nightly
@pytest.mark.parametrize(
    "way",
    [
        {},
        {"mask": "bits", "splits": 2},
        {"mask": "bias"},
        {"mask": "alternating"},
        {"hidden": "nan"},
        {"hidden": "keys"},
        {"left padded": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_a_script_of_a_case_that_is_right_passes(way, layout, tmp_path):
    pytest.importorskip("triton")
    from fuzz.script import write_script

    target = CLASSES["interpreter"]()
    problem = replace(KV_BIAS, layout=layout, lengths_q=(9, 4) if layout == "packed" else (9, 9))
    if "left padded" in way:
        problem, way = replace(problem, mask=And((Causal("bottom_right"), Not(Prefix(33))))), {}
    path = tmp_path / "case.py"
    path.write_text(write_script(Case(target.name, problem, variant=way), target, None))
    done = subprocess.run(
        [sys.executable, str(path)], env=os.environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
