"""Wide forward tiles: in sessions, in block lists, in verdicts; 192 queries by wgmma and 256 by tcgen05."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import pytest
from covering import nightly_unless
from needs import needs_emulator

from fuzz.core.case import Case, attention_of
from fuzz.core.refusal import refusal
from fuzz.core.target import Device
from fuzz.core.verdict import Verdict
from fuzz.generate.kernel_turns import variants_of
from fuzz.judging.judge import execute
from fuzz.session.draw import drawer_of, explore
from fuzz.session.plan import plan
from fuzz.session.settings import Settings
from fuzz.targets.blocksparse.block_lists import blocks_of
from fuzz.targets.blocksparse.case_blocks import CaseBlocks, case_blocks
from fuzz.targets.blocksparse.catalog import CLASSES
from fuzz.targets.blocksparse.emulated import EmulatedBlockSparse
from fuzz.targets.blocksparse.static_checks import as_metadata
from fuzz.targets.blocksparse.target import BlockSparseTarget
from fuzz.targets.blocksparse.variants import kernel_choices
from fuzz.targets.registry import load
from kernels.mutants.blocksparse.registration import BlockSparseMutant
from kernels.mutants.blocksparse.table import MUTANTS
from oracles import block_lists
from oracles.masks import Blocks, Causal, Documents, PerHead, Window
from oracles.problem import Problem

Options: TypeAlias = dict[str, str | int | bool]
HOPPER: Options = {"wide": 192, "products": "wgmma"}
BLACKWELL: Options = {"wide": 256, "products": "tcgen05"}
RANDOM = Blocks(32, 16, ("F.M.F", "....", "M..F", "MMMM", "F", ".F", "M.FM", "F..F", "..MM"), 3)


def run(case: Case) -> Verdict:
    return execute(case, load(case.target), lambda phase, limit: None)


def of_one_sequence(dim: int = 64, dtype: str = "bfloat16", **more) -> Problem:
    return Problem((300,), (200,), 2, 1, dim, dim, dtype, **{"mask": Causal("bottom_right")} | more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("device", "sizes"),
    [pytest.param("emulator", {192, 256}, marks=needs_emulator), ("cuda", {192})],
)
def test_sessions_draw_lists_of_wide_tiles(device: Device, sizes: set[int]) -> None:
    settings = Settings(targets=("blocksparse",), device=device, cases=600, size="small")
    target, found = CLASSES[device](), list[Case]()
    for shard in plan(settings):
        explore(shard, drawer_of(target, settings), found.append)
    wide = [one for one in found if "wide" in one.variant]
    assert 0.07 < len(wide) / len(found) < 0.25
    assert {one.variant["wide"] for one in wide} == sizes
    for size in sizes:
        mine = [one for one in wide if one.variant["wide"] == size]
        for name, values in (("mask", 3), ("lists", 3), ("schedule", 4), ("tile_n", 2)):
            assert len({one.variant[name] for one in mine}) == values, (size, name)
        assert any(one.problem.backward for one in mine) and any(one.problem.softcap for one in mine)
        assert {one.problem.dtype for one in mine} == {"bfloat16", "float16"}


@pytest.mark.parametrize("emulated", [True, False])
def test_a_choice_of_wide_tiles_costs_one_forward_kernel(emulated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    target = (EmulatedBlockSparse if emulated else CLASSES["cuda"])()
    if not emulated:
        monkeypatch.setattr(target, "arch", lambda: "sm_90a")
    plain, wide = set[str](), list[frozenset[str]]()
    for choice in kernel_choices(emulated=emulated):
        if not emulated and choice.variant.get("products") == "tcgen05":
            continue
        assert choice.dims is not None
        problem = of_one_sequence(choice.dims[1], str(choice.dtype), softcap=5.0 if choice.softcap else 0.0)
        planned = target.planned(Case("blocksparse", problem, variant=choice.variant))
        if "wide" in choice.variant:
            wide.append(planned)
        else:
            plain |= planned
    assert len(wide) == (12 if emulated else 6)
    new = [one - plain for one in wide]
    # on a GPU other capped choices have products by mma.sync, so that one brings its backward pass with it
    own = {
        "backward_bf16_d64_m128_n128_bits_det_cap_wgmma_depth32_step_m64",
        "postprocess_bf16_d64_m128_n128_none_wgmma_step_m64",
    }
    others = {name for one in new for name in one if not name.startswith("forward_")}
    assert {name.split()[0] for name in others} == (set() if emulated else own)
    assert all(sum(name.startswith("forward_") for name in one) == 1 for one in new)
    assert len(set(new)) == len(new)


@pytest.mark.parametrize("device", ["emulator", "cuda"])
def test_a_forward_pass_alone_may_have_no_other_lists(device: Device) -> None:
    target = CLASSES[device]()
    drawn = target.variants_for(of_one_sequence(backward=False))
    alone = [one for one in drawn if one["tile_m"] > 128]
    expected = {(192, "wgmma"), (256, "tcgen05")} if device == "emulator" else {(192, "wgmma")}
    assert {(one["tile_m"], one["products"]) for one in alone} == expected
    assert not any("wide" in one for one in alone)
    assert all(one["tile_m"] <= 128 for one in target.variants_for(of_one_sequence()))


def test_a_turn_of_other_kernels_has_no_wide_tiles() -> None:
    target = EmulatedBlockSparse()
    drawn = target.variants_for(of_one_sequence())
    for choice in kernel_choices(emulated=True):
        if choice.dtype != "bfloat16" or choice.dims != (40, 64) or choice.softcap:
            continue
        mine = variants_of(choice, drawn)
        assert mine != drawn
        assert {(one.get("wide"), one.get("products")) for one in mine} == {
            (choice.variant.get("wide"), choice.variant.get("products"))
        }


@pytest.mark.parametrize("wide", [192, 256])
@pytest.mark.parametrize(
    ("mask", "variant"),
    [
        (RANDOM, {"lists": "csr"}),
        (RANDOM, {"lists": "padded"}),
        (PerHead((Causal(), Documents((90,)))), {"lists": "compact", "schedule": "planned"}),
        (Documents((30, 90, 200)), {"mask": "intervals"}),
        (Documents((30, 90, 200)), {"mask": "intervals", "source": "ranges"}),
        (Documents((30, 90, 200)), {"mask": "intervals", "source": "linear"}),
        (Window(100, 20), {"mask": "band", "lists": "padded"}),
        (RANDOM, {"lists": "halved", "tile_n": 64}),
    ],
)
def test_lists_of_wide_tiles_are_the_mask(wide: int, mask, variant: dict) -> None:
    problem = of_one_sequence(mask=mask)
    case = Case("blocksparse", problem, variant=variant | {"wide": wide})
    assert refusal(BlockSparseTarget(), case) is None
    blocks = blocks_of(case)
    assert blocks.wide is not None and (blocks.tile_m, blocks.wide.tile_m) == (128, wide)
    assert blocks.wide.backward is None and blocks.wide.tile_n == blocks.tile_n
    assert block_lists.check(problem, as_metadata(blocks.wide)) == []
    assert BlockSparseTarget().inspect(case) == []
    plain = blocks_of(Case("blocksparse", problem, variant=variant))
    assert plain.wide is None and len(plain.tensors()) < len(blocks.tensors())


def test_both_calls_of_split_keys_have_lists_of_wide_tiles() -> None:
    case = Case("blocksparse", of_one_sequence(), variant=HOPPER | {"keys": "split", "tile_n": 64})
    for parity, blocks in enumerate(case_blocks(case).calls(blocks_of(case).device)):
        assert blocks.wide is not None
        for kind in ("partial", "full"):
            one = getattr(blocks.wide.forward, kind)
            _, index = one.to_padded(4, parity)
            assert bool((index % 2 == parity).all())


@pytest.mark.parametrize("mask", [RANDOM, PerHead((Causal(), Window(90, 20)))])
def test_a_bug_in_the_metadata_is_in_the_lists_of_wide_tiles_too(mask) -> None:
    case = Case("blocksparse", of_one_sequence(mask=mask), variant={"wide": 192})
    changed = set()
    for name, mutant in MUTANTS.items():
        if mutant.blocks is not BlockSparseMutant.blocks:
            launched = CaseBlocks(case, name).launched
            assert launched.wide is not None and launched.wide.wide is None and launched.wide.backward is None
            if block_lists.check(attention_of(case), as_metadata(launched.wide)):
                changed.add(name)
    assert {"last_partial_block_lost", "head_ignored"} & changed == (
        {"last_partial_block_lost"} if mask is RANDOM else {"last_partial_block_lost", "head_ignored"}
    )


def test_a_block_that_only_the_lists_of_wide_tiles_lack_is_found_without_a_run(monkeypatch: pytest.MonkeyPatch) -> None:

    mutant = MUTANTS["last_partial_block_lost"]
    both = mutant.blocks
    only = replace(mutant, blocks=lambda blocks: replace(blocks, wide=both(blocks).wide))
    monkeypatch.setitem(MUTANTS, "last_partial_block_lost", only)
    case = Case("blocksparse!last_partial_block_lost", of_one_sequence(mask=RANDOM), variant={"wide": 192})
    found = BlockSparseTarget("last_partial_block_lost").inspect(case)
    assert {(one.oracle, one.kind) for one in found} == {("block_lists", "missing")}


@pytest.mark.parametrize(
    ("problem", "variant"),
    [
        (of_one_sequence(), {"wide": 100}),
        (of_one_sequence(), {"wide": 128}),
        (of_one_sequence(backward=False), HOPPER | {"tile_m": 192}),
        (of_one_sequence(backward=False), BLACKWELL | {"tile_m": 256}),
        (of_one_sequence(), {"tile_m": 192, "products": "wgmma"}),
    ],
)
def test_what_is_refused(problem: Problem, variant: dict) -> None:
    refused = refusal(EmulatedBlockSparse(), Case("blocksparse", problem, variant=variant))
    assert refused is not None and refused.kind == "cannot"


def test_lists_of_wide_tiles_are_not_read_where_no_kernel_has_them() -> None:
    target = EmulatedBlockSparse()
    unread: list[tuple[int, Options]] = [(64, HOPPER | {"products": "mma"}), (64, HOPPER | {"wide": 256}), (72, HOPPER)]
    for dim, variant in unread:
        case = Case("blocksparse", of_one_sequence(dim), variant=variant)
        assert refusal(target, case) is None
        assert not any("m192" in name or "m256" in name for name in target.planned(case))


def nightly_but(one: int, *cases):
    return [nightly_unless(at == one, *case) for at, case in enumerate(cases)]


@needs_emulator
@pytest.mark.parametrize(
    ("problem", "variant", "kernel"),
    nightly_but(
        2,
        (of_one_sequence(40, mask=RANDOM), HOPPER | {"tile_m": 64, "schedule": "shuffled"}, "m192_n128_bits_wgmma"),
        (of_one_sequence(32, mask=RANDOM), BLACKWELL | {"deterministic": False}, "m256_n128_bits_tcgen05"),
        (
            Problem((300, 0, 200), (150, 40, 0), 2, 1, 24, 24, "float16", "packed", Window(100, 20)),
            HOPPER | {"tile_m": 64, "tile_n": 64, "mask": "band", "deterministic": False, "lists": "padded"},
            "m192_n64_band_wgmma",
        ),
        (of_one_sequence(mask=Documents((50, 260))), BLACKWELL | {"mask": "intervals"}, "m256_n128_intervals_tcgen05"),
        (of_one_sequence(dtype="float16", softcap=5.0), HOPPER | {"tile_n": 64}, "m192_n64_bits_cap_wgmma"),
        (of_one_sequence(mask=RANDOM), HOPPER | {"tile_m": 64, "keys": "split"}, "m192_n128_bits_wgmma"),
        (
            of_one_sequence(mask=RANDOM, backward=False),
            {"tile_m": 192, "products": "wgmma", "lists": "compact"},
            "m192_n128_bits_wgmma",
        ),
        (of_one_sequence(96, mask=RANDOM), BLACKWELL | {"tile_n": 64}, "m256_n64_bits_tcgen05"),
    ),
)
def test_wide_tiles_are_right_on_the_emulated_gpu(problem: Problem, variant: dict, kernel: str) -> None:
    verdict = run(Case("blocksparse", problem, variant=variant | {"slots": 2, "warps": "random"}, repeats=2))
    assert verdict.outcome == "pass", verdict
    launched = verdict.kernel.split(", ")
    forward = [name for name in launched if name.startswith("forward_")]
    assert forward and all(kernel in name for name in forward)
    assert (len(launched) > len(forward)) == problem.backward


@needs_emulator
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("mutant", "problem", "variant"),
    [
        ("rows_left_of_both_tiles", of_one_sequence(32), BLACKWELL),
        ("sums_not_rescaled", of_one_sequence(40, mask=Window(200, 0)), HOPPER),
        ("output_of_both_tiles", of_one_sequence(32), BLACKWELL),
    ],
)
def test_a_wrong_kernel_of_wide_tiles_fails_where_the_correct_one_passes(
    mutant: str, problem: Problem, variant: dict
) -> None:
    wrong = run(Case(f"blocksparse!{mutant}", problem, variant=variant | {"slots": 2}))
    assert wrong.outcome == "fail", wrong
    assert run(Case("blocksparse", problem, variant=variant | {"slots": 2})).outcome == "pass"
