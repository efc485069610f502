"""Mutants of kernels.blocksparse fail under the harness, on the emulated GPU, on small cases that the correct
kernels pass. Bugs in the kernels are compiled, for seconds each: most of those run nightly."""

from functools import cache

import pytest
from msgspec.structs import replace

pytest.importorskip("cutlass")
pytest.importorskip("numba")

from blocksparse_shown import HOST, KERNELS, LISTS

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


@pytest.mark.parametrize("name", LISTS)
def test_wrong_metadata_fails_where_the_correct_one_passes(name):
    check(name, *LISTS[name])


@pytest.mark.parametrize("name", HOST)
def test_a_wrong_launch_fails_where_the_correct_one_passes(name):
    check(name, *HOST[name])


# One of each pass, one of tcgen05, two of pairs of CTAs
DAILY = ("kv_head_modulo", "delta_added", "phase_not_flipped", "commit_in_leader_alone", "peer_keys_not_waited_for")
NIGHTLY = [pytest.param(name, marks=[] if name in DAILY else pytest.mark.nightly) for name in KERNELS]


@pytest.mark.parametrize("name", NIGHTLY)
def test_a_wrong_kernel_fails_where_the_correct_one_passes(name):
    check(name, *KERNELS[name])
