"""Mutants of kernels.blocksparse fail under the harness, on the emulated GPU, on small cases that the correct
kernels pass. Bugs in the kernels are compiled, for seconds each: most of those run nightly."""

from functools import cache

import pytest
from covering import daily
from msgspec.structs import replace

pytest.importorskip("cutlass")
pytest.importorskip("numba")

from blocksparse_shown import EARLY, HOST, KERNELS, LISTS, OF_CTA_PAIRS

from fuzz.judging.judge import execute
from fuzz.targets.blocksparse.emulated import EmulatedBlockSparse
from fuzz.targets.registry import load


def verdict(name, case):
    target = load("blocksparse" + f"!{name}" * bool(name))
    assert isinstance(target, EmulatedBlockSparse)
    return execute(replace(case, target=target.name), target, lambda phase, limit: None)


@cache
def passes(case):
    found = verdict("", case)
    return found.outcome == "pass", found


def said(found):
    return {f.kind if f.oracle == "emulator" else f"{f.tensor} {f.kind}".strip() for f in found.findings}


def check(name, case, told):
    found = verdict(name, case)
    assert found.outcome in ("fail", "hang", "flake") and told & said(found), found
    good, correct = passes(case)
    assert good, correct


@pytest.mark.parametrize("name", daily(list(LISTS), list(LISTS)[::3]))
def test_wrong_metadata_fails_where_the_correct_one_passes(name):
    check(name, *LISTS[name])


@pytest.mark.parametrize("name", daily(list(HOST), list(HOST)[::3]))
def test_a_wrong_launch_fails_where_the_correct_one_passes(name):
    check(name, *HOST[name])


# One of each pass, one of fused products
DAILY = ("kv_head_modulo", "delta_added", "maxima_scaled_apart")
NIGHTLY = [pytest.param(name, marks=[] if name in DAILY else pytest.mark.nightly) for name in KERNELS]


@pytest.mark.parametrize("name", NIGHTLY)
def test_a_wrong_kernel_fails_where_the_correct_one_passes(name):
    check(name, *KERNELS[name])


@pytest.mark.parametrize(("contraction", "outcome"), [("as_written", "pass"), ("second", "fail")])
def test_a_difference_of_products_is_seen_only_where_one_of_them_is_fused_with_it(contraction, outcome):
    case, _ = KERNELS["maxima_scaled_apart"]
    found = verdict("maxima_scaled_apart", replace(case, variant=case.variant | {"contraction": contraction}))
    assert found.outcome == outcome, found


# Mutants of other kernels at injection points that the backward kernel of pairs of CTAs has too
SHARED_WITH_PAIRS = {
    "dp_read_before_commit": EARLY,
    "dq_read_before_commit": EARLY,
    "dq_overwritten_before_read": {"race_tensor_memory", "race_read_of_an_unordered_write"},
    "ds_without_proxy_fence": {"shared_memory_read_by_tcgen05_without_fence.proxy.async"},
    "gradient_tail_by_bulk_copy": {"out_of_bounds"},
    "last_block_not_released": {"hang"},
    "release_missing": {"hang"},
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", SHARED_WITH_PAIRS)
def test_a_mutant_of_single_ctas_fails_on_pairs_too(name):
    check(name, OF_CTA_PAIRS, SHARED_WITH_PAIRS[name])
