"""Block lists of the branches: the fused kernels beside the builders of kernels.blocksparse, and what they hold."""

import pytest
import torch
from covering import covering
from nsa_lists import operands_of, settings_of
from torch._subclasses.fake_tensor import FakeTensorMode

from fuzz.targets.nsa.list_facts import drawn, expected_lists, facts
from kernels.nsa.branches import BRANCHES
from kernels.nsa.launcher import Plan
from kernels.nsa.lists.build import branch_lists
from kernels.nsa.operands import Operands, Settings
from kernels.nsa.selection import Selection

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CASES = {
    "blocks smaller than tiles": (settings_of(), (300,), {"batch": 2}),
    "blocks of two tiles of keys": (settings_of(block=128, tile=256, chosen=2), (900,), {}),
    "blocks across tiles of keys": (settings_of(block=48, window=129), (500, 0, 130), {"packed": True}),
    "strict, tiles of 64 queries, adds in any order": (
        settings_of(causal=2, tile=192, deterministic=False),
        (500, 333, 1, 0, 40),
        {"packed": True},
    ),
    "not causal": (settings_of(causal=0, window=90), (300, 40), {"packed": True}),
    "not causal, adds in any order": (settings_of(causal=0, window=0, deterministic=False), (200,), {}),
    "no window, dims that need tiles of 64 keys": (settings_of(window=0, block=64), (300,), {"dim": 136}),
    "a window of all keys": (settings_of(window=1 << 30, tile=64), (400, 30), {"packed": True}),
    "groups": (settings_of(groups=1), (2500, 2100), {"packed": True}),
    "strict groups, adds in any order": (settings_of(groups=1, causal=2, deterministic=False), (2500,), {}),
    "groups that are not causal": (settings_of(groups=1, causal=0), (2500,), {}),
}


def differences(name, operands, selection, backward):
    """Names of the facts in which lists differ from the expected ones."""
    deterministic = operands.settings.deterministic
    got = facts(branch_lists(name, operands, selection, backward), backward, deterministic)
    want = facts(expected_lists(name, operands, selection, backward), backward, deterministic)
    assert got.keys() == want.keys()
    return [
        key for key in want if got[key].shape != want[key].shape or not torch.equal(got[key].long(), want[key].long())
    ]


@pytest.mark.parametrize(("case", "backward"), covering(list(CASES), [False, True], strength=1))
def test_lists_are_those_of_the_builders(case, backward):
    settings, lengths, options = CASES[case]
    operands = operands_of(settings, lengths, device=DEVICE, **options)
    selection = drawn(operands)
    for name in BRANCHES if not settings.groups else BRANCHES[:1]:
        assert not differences(name, operands, selection, backward), name


def test_a_changed_selection_changes_the_lists():
    """The comparison sees one block more, and one of another number."""
    operands = operands_of(settings_of(), (300,), device=DEVICE)
    selection = drawn(operands)
    wanted = facts(expected_lists("selected", operands, selection, True), True, True)
    for changed in (selection.blocks[..., :-1].contiguous(), (selection.blocks + 1).clamp(max=18)):
        got = facts(branch_lists("selected", operands, Selection(changed), True), True, True)
        assert any(not torch.equal(got[key].long(), wanted[key].long()) for key in wanted)


@pytest.mark.parametrize("backward", [False, True])
def test_rows_that_do_not_ascend_name_no_tile_twice(backward):
    """A frozen selection may name a block twice, or in any order: no entry is listed twice, so no rank is missing."""
    operands = operands_of(settings_of(block=64), (700,), heads=(1, 1), device=DEVICE)
    rows = torch.tensor([5, 1, 9], dtype=torch.int32).expand(1, 1, operands.settings.tiles, 3).contiguous()
    kept = torch.tensor([5, 9, -1], dtype=torch.int32).expand_as(rows).contiguous()
    got, want = (
        facts(branch_lists("selected", operands, Selection(x.to(DEVICE)), backward), backward, True)
        for x in (rows, kept)
    )
    slot = "slot"
    assert all(torch.equal(got[key].long(), want[key].long()) for key in want if key != slot or not backward)


@pytest.mark.parametrize(("groups", "most"), [(0, (36, 56)), (16, (56, 84))])
def test_lists_of_a_million_tokens_take_less_than_a_tenth_of_a_gib(groups, most):
    """All branches, 32 query heads, blocks of 64, 16 of them, each storage once, in MiB; nothing runs here."""
    with FakeTensorMode():
        q, k = (torch.empty(1, 1 << 20, heads, 128, dtype=torch.bfloat16) for heads in (32, 8))
        settings = Settings(64, 16, 512, groups, 1, 256, 1 << 20, 1.0, True)
        operands = Operands(q, k, k, None, None, None, None, settings, Plan())
        rows = torch.empty(1, 32, settings.tiles, 16, dtype=torch.int32)
        selection = Selection(rows, rows if groups else None)
        forward, backward = (
            [branch_lists(name, operands, selection, backward).nbytes / 2**20 for name in BRANCHES]
            for backward in (False, True)
        )
    assert sum(forward) < most[0] and sum(backward) < most[1]
    assert max(forward) + max(backward) < 102.4  # a branch and its two passes, where dQ has a kernel of its own
    if not groups:
        assert sum(forward) + sum(backward) < 102.4


def test_each_branch_has_one_launch_forward_and_three_backward_at_most():
    """A sort beside them is that of chosen blocks, backward."""
    with FakeTensorMode():
        for groups, length in ((0, 5000), (1, 5000)):
            operands = operands_of(settings_of(groups=groups), (length,))
            plan = Plan()
            object.__setattr__(operands, "plan", plan)
            s = operands.settings
            rows = torch.empty(1, 2, s.tiles, 3, dtype=torch.int32)
            for name in BRANCHES:
                for backward in (False, True):
                    before = len(plan.launches)
                    branch_lists(name, operands, Selection(rows, rows if groups else None), backward)
                    chosen = name == "selected" or (groups and name == "compressed")
                    assert len(plan.launches) - before == (2 if backward and chosen else 1)
