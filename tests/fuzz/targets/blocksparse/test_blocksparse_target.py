"""The target `blocksparse`: what it compiles, what it predicts without a run, its kernels on the emulated GPU."""

from __future__ import annotations

import json
from collections import Counter
from itertools import product

import msgspec
import pytest
from covering import daily

from fuzz.core.case import Case, Inputs
from fuzz.core.refusal import refusal
from fuzz.core.target import Device
from fuzz.judging.judge import execute
from fuzz.session.draw import drawer_of, explore
from fuzz.session.plan import plan as shards
from fuzz.session.precompile.build_plan import plan
from fuzz.session.settings import Settings
from fuzz.targets.blocksparse.block_lists import blocks_of
from fuzz.targets.blocksparse.catalog import CLASSES, MUTANTS
from fuzz.targets.blocksparse.devices import emulator_there
from fuzz.targets.blocksparse.emulated import EmulatedBlockSparse
from fuzz.targets.blocksparse.gpu import GpuBlockSparse
from fuzz.targets.blocksparse.static_checks import shapes_of
from fuzz.targets.blocksparse.target import BlockSparseTarget
from fuzz.targets.blocksparse.variants import kernel_choices, kernels_for, variants_for
from fuzz.targets.registry import load, targets
from kernels.blocksparse.compile import runtime
from kernels.blocksparse.launch.backward import backward_variants
from kernels.blocksparse.launch.forward import forward_variant
from kernels.blocksparse.spec.variant import Variant
from oracles.masks import Causal, Documents, Full, Intervals, PerHead, Tokens, Window
from oracles.problem import Problem

SEGMENTS = (366, 391, 471, 835, 984, 1005, 1017, 1020, 1023)
VARLEN_FULL_1K = Problem((1024,), (1024,), 1, 1, 128, 128, "bfloat16", mask=Documents(SEGMENTS))
TWO_RUNS = Intervals((((3, 9), (20, 30)),) * 50)
SMALL = Problem((70,), (150,), 2, 1, 64, 64, "float16", mask=Causal())


def case(problem: Problem = SMALL, mutant: str = "", repeats: int = 2, **variant) -> Case:
    return Case("blocksparse" + f"!{mutant}" * bool(mutant), problem, Inputs(), variant, repeats)


def run(of: Case):
    return execute(of, load(of.target), lambda phase, limit: None)


def test_a_thousand_cases_need_tens_of_kernels_that_cover_every_choice() -> None:
    wanted = Settings(targets=("blocksparse",), device="cuda", cases=1000)
    builds = [json.loads(build.options) for build in plan(wanted, "sm_90a").builds]
    kinds = Counter(one["kind"] for one in builds)
    attention = kinds["forward"] + kinds["backward"]
    # full masks have up to three forward kernels at a dim: of single CTAs, in clusters, and with tiles that are split.
    # At head dim 128 bands have two backward kernels with atomic adds, by their width, full masks two with ordered
    # ones. Five groups of head dims have kernels whose products have fewer columns than the tiles
    assert attention < 120 and len(builds) - attention < attention / 2, kinds
    forward = [one for one in builds if one["kind"] == "forward"]
    for field, values in (
        ("dim_padded", 7),
        ("dtype", 2),
        ("tile_m", 3),
        ("tile_n", 2),
        ("mask", 4),
        ("softcap", 2),
        ("products", 2),
    ):
        assert len(Counter(one[field] for one in forward)) == values, field
    assert {one["deterministic"] for one in builds if one["kind"] == "backward"} == {False, True}
    masked = [one for one in forward if one["mask"] != "none"]  # full blocks alone come with one choice of tiles
    for field, other in (("dtype", "mask"), ("tile_m", "mask"), ("tile_n", "mask"), ("tile_m", "tile_n")):
        values = [{one[name] for one in masked} for name in (field, other)]
        pairs = {(one[field], one[other]) for one in masked}
        assert pairs == set(product(*values)), (field, other)


def test_full_masks_are_drawn_with_the_kernels_that_these_have_on_hopper() -> None:
    """As `dense` makes their lists, ascending: their rows are alike, which the launcher has a tuning for, but for
    ordered adds of packed sequences."""
    problem = Problem((900, 650), (640, 640), 2, 1, 128, 128, "bfloat16", mask=Full())
    packed = msgspec.structs.replace(problem, layout="packed")
    chosen = [one for one in variants_for(problem, emulated=False) if one["mask"] == "none"]
    assert {(one["tile_m"], one["tile_n"], one["deterministic"]) for one in chosen} == {(128, 128, True)}
    assert not any(
        one["mask"] == "none" for one in variants_for(msgspec.structs.replace(problem, mask=Causal()), emulated=False)
    )
    alike = {one["schedule"]: blocks_of(case(problem, **one)).schedule.alike for one in chosen}
    assert alike.pop("ascending") and alike and not any(alike.values())
    for one in chosen:
        for of, ordered in product((problem, packed), (True, False)):
            q, blocks, _ = shapes_of(case(of, **one))
            main = backward_variants(q, blocks, deterministic=ordered, products="wgmma")[-2]
            splits = (("splits", 1),) if one["schedule"] == "ascending" else ()
            assert main.tuning == (() if ordered else (("runs", 1), *splits))


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize(
    ("lengths", "clustered"), [((512, 512), True), ((512, 500), False), ((384,), False), ((1,), False)]
)
def test_the_forward_kernel_of_a_full_mask_is_that_of_its_lists(lengths, clustered, layout) -> None:
    """The kernel that is compiled ahead, for lists without numbers, is the one that a launch with the lists takes."""
    problem = Problem(lengths, lengths, 2, 1, 128, 128, "bfloat16", layout=layout, mask=Full())
    for one in variants_for(problem, emulated=False):
        if one["mask"] == "none":
            made = case(problem, **one)
            q, blocks, _ = shapes_of(made)
            ahead = forward_variant(q, blocks, products="wgmma")
            assert ahead == forward_variant(q, blocks_of(made), products="wgmma")
            assert dict(ahead.tuning).get("cluster", 1) == (2 if clustered and layout == "padded" else 1), one


def test_sessions_draw_head_dims_to_256_and_on_a_gpu_crowds_of_ctas() -> None:
    drawn: dict[str, list[Case]] = {"cuda": [], "host": []}
    for device, found in drawn.items():
        wanted = Settings(targets=("blocksparse",), device=device, cases=500, size="small")  # type: ignore[arg-type]
        for shard in shards(wanted):
            target = load("blocksparse", device=device)  # type: ignore[arg-type]
            explore(shard, drawer_of(target, wanted), found.append)
    for found in drawn.values():
        large = [one.problem.dim for one in found if one.problem.dim > 128]
        assert 0.03 < len(large) / len(found) < 0.11 and max(large) > 192
        assert all(refusal(load("blocksparse"), one) is None for one in found if one.problem.dim > 128 and usual(one))

    def ctas(one: Case) -> int:
        return one.problem.batch * one.problem.heads_kv * -(-one.problem.len_k // int(one.variant["tile_n"]))

    crowded = [one for one in drawn["cuda"] if ctas(one) > 300]
    assert 0.06 < len(crowded) / len(drawn["cuda"]) < 0.2
    assert not any(ctas(one) > 300 for one in drawn["host"] if "ctas" not in one.variant)


@pytest.mark.skipif(not emulator_there(), reason="needs the emulated GPU")
def test_a_run_is_on_the_emulated_gpu_though_another_launcher_was_taken_back_since_the_last_one() -> None:
    assert run(case()).outcome == "pass"
    runtime.launch_elsewhere(None)
    assert run(case()).outcome == "pass"


@pytest.mark.skipif(not emulator_there(), reason="needs the emulated GPU")
def test_the_emulated_gpu_refuses_no_kernel_that_sessions_draw() -> None:
    """A kernel that fits no architecture has its cases refused, and a refusal is no failure."""
    known, fitting = kernel_choices(emulated=True), EmulatedBlockSparse().kernel_choices()
    assert known == fitting
    assert {one.variant.get("products") for one in fitting} == {None, "wgmma", "tcgen05"}
    by_tcgen05 = [one for one in fitting if one.variant.get("products") == "tcgen05"]
    blackwell = [one for one in by_tcgen05 if "wide" not in one.variant]
    assert {one.dims[1] for one in blackwell if one.dims} == {32, 64, 96, 128, 192}
    assert {one.variant["mask"] for one in blackwell} == {"bits", "intervals", "band"}
    assert {one.softcap for one in blackwell} == {False, True} and len(blackwell) < 10
    backward = [one for one in blackwell if one.variant["tile_n"] == 128 and one.dims and one.dims[1] in (64, 128)]
    assert {(one.dims[1], one.variant["deterministic"]) for one in backward if one.dims} == {
        (dim, ordered) for dim in (64, 128) for ordered in (False, True)
    }


def test_about_half_of_the_ordered_adds_of_several_tiles_are_shuffled() -> None:
    wanted = Settings(targets=("blocksparse",), device="host", cases=1500)
    found: list[Case] = []
    for shard in shards(wanted):
        explore(shard, drawer_of(load("blocksparse", device="host"), wanted), found.append)
    whole = [one for one in found if "ctas" not in one.variant]
    ordered = [one for one in whole if one.problem.backward and one.variant["deterministic"]]
    several = [one for one in ordered if one.problem.len_k > 2 * int(one.variant["tile_n"])]
    assert len(ordered) > 0.4 * len(found) and len(several) > 0.08 * len(found)
    shares = Counter(one.variant["schedule"] for one in several)
    assert 0.35 < shares["shuffled"] / len(several) < 0.6 and min(shares.values()) > 0.08 * len(several)
    others = Counter(one.variant["schedule"] for one in whole if one not in several)
    assert min(others.values()) > 0.2 * (len(whole) - len(several))


@pytest.mark.parametrize("device", ["emulator", "cuda"])
@pytest.mark.parametrize("variant", [{}, {"products": "wgmma", "tile_n": 64}, {"deterministic": False}])
def test_what_is_planned_for_a_case_is_what_it_builds(
    monkeypatch: pytest.MonkeyPatch, device: Device, variant: dict
) -> None:
    target, of = CLASSES[device](), case(**variant)
    monkeypatch.setattr(target, "arch", lambda: "sm_90a")
    built = set()
    for build in target.builds(of, "sm_90a"):
        options = json.loads(build.options)
        options.pop("mutant")
        built.add(f"{Variant(**options | {'tuning': ()}).name} {build.arch}")
    assert target.planned(of) == built and len(built) == 4


def usual(one: Case) -> bool:
    """With a scale that every case takes, and keys in one call, as all inputs can have them."""
    return (one.problem.scale is None or one.problem.scale > 0) and one.variant.get("keys") != "split"


def test_builds_name_the_injection_only_where_they_are() -> None:
    target = load("blocksparse!lock_is_n_block")
    assert isinstance(target, BlockSparseTarget)
    planted = {json.loads(b.options)["kind"]: json.loads(b.options)["mutant"] for b in target.builds(case(), "sm_80")}
    assert planted == {
        "forward": "",
        "preprocess": "",
        "backward": "blocksparse!lock_is_n_block",
        "postprocess": "",
    }
    correct = load("blocksparse").builds(case(), "sm_80")
    assert {b.key for b in correct} & {b.key for b in target.builds(case(), "sm_80")} == {
        b.key for b in correct if json.loads(b.options)["kind"] != "backward"
    }


@pytest.mark.parametrize(
    ("problem", "variant", "kind"),
    [
        (SMALL, {"tile_m": 48}, "cannot"),
        (SMALL, {"tiles": 64}, "cannot"),
        (SMALL, {"products": "simt"}, "cannot"),
        (SMALL, {"products": "tcgen05", "tile_m": 64}, "cannot"),
        (SMALL, {"products": "wgmma", "tile_m": 192}, "cannot"),
        (Problem((9,), (9,), 1, 1, 72, 72, "float16", backward=False), {"products": "wgmma", "tile_m": 192}, "cannot"),
        (Problem((9,), (9,), 1, 1, 64, 64, "float16", backward=False), {"products": "mma", "tile_m": 192}, "cannot"),
        (Problem((9,), (9,), 1, 1, 64, 64, "float16", mask=Tokens(("1",))), {"mask": "intervals"}, "cannot"),
        (Problem((9,), (9,), 1, 1, 64, 64, "float16", mask=Documents((3,))), {"mask": "band"}, "cannot"),
        (Problem((9,), (9,), 1, 1, 64, 64, "float32"), {}, "cannot"),
        (Problem((9,), (9,), 1, 1, 68, 68, "float16"), {}, "cannot"),
        (Problem((9,), (9,), 1, 1, 64, 64, "float16", scale=0.0), {}, "refuses"),
    ],
)
def test_what_it_does_not_take_is_declared(problem: Problem, variant: dict, kind: str) -> None:
    refused = refusal(load("blocksparse"), case(problem, **variant))
    assert refused is not None and refused.kind == kind


def test_tiles_that_an_arch_has_no_shared_memory_for_are_not_asked_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    of = case(Problem((70,), (150,), 2, 1, 96, 96, "float16", mask=Causal()), tile_m=128, tile_n=128)
    target = load("blocksparse")
    assert isinstance(target, BlockSparseTarget)
    assert refusal(target, of) is None and target.builds(of, "sm_100a") and not target.builds(of, "sm_120a")
    monkeypatch.setenv("ATTNFUZZ_ARCH", "sm_120a")
    refused = refusal(target, of)
    assert refused is not None and refused.kind == "cannot" and "no room" in refused.why


def test_a_declared_refusal_is_kept() -> None:
    assert run(case(Problem((9,), (9,), 1, 1, 64, 64, "float16", scale=-0.25))).outcome == "reject"


def test_correct_metadata_has_no_findings() -> None:
    target = load("blocksparse")
    for mask in (Full(), Causal("bottom_right"), Window(100, 20), PerHead((Causal(), Documents((40,))))):
        for schedule in ("ascending", "descending", "shuffled", "planned"):
            problem = Problem((300, 0, 65), (190, 40, 0), 4, 2, 64, 64, "bfloat16", layout="packed", mask=mask)
            assert target.inspect(case(problem, tile_m=64, tile_n=64, schedule=schedule, lists="compact")) == []


def test_the_seed_s_deadlock_is_predicted() -> None:
    (finding,) = load("blocksparse!lock_is_n_block").inspect(case(VARLEN_FULL_1K, "lock_is_n_block"))
    assert (finding.oracle, finding.kind) == ("semaphore_order", "hang")
    assert load("blocksparse").inspect(case(VARLEN_FULL_1K)) == []


def test_a_direction_mismatch_is_predicted_with_few_resident_ctas() -> None:
    target = BlockSparseTarget("rank_direction")
    found = target.inspect(case(VARLEN_FULL_1K, "rank_direction"))
    assert {f.oracle for f in found} == {"block_lists"} and {f.kind for f in found} == {"order"}
    (finding,) = EmulatedBlockSparse("rank_direction").inspect(case(VARLEN_FULL_1K, "rank_direction"))
    assert (finding.oracle, finding.kind) == ("semaphore_order", "hang") and "with 1 resident" in finding.message


@pytest.mark.parametrize("mutant", ["head_ignored", "last_partial_block_lost", "rank_per_list"])
def test_planted_metadata_is_found_where_nothing_can_run(mutant: str) -> None:
    problem = Problem((300,), (300,), 2, 1, 64, 64, "float16", mask=PerHead((Causal(), Window(64, 0))))
    verdict = execute(case(problem, mutant, tile_m=64, tile_n=64), BlockSparseTarget(mutant), lambda phase, limit: None)
    assert verdict.outcome == "fail" and {f.oracle for f in verdict.findings} == {"block_lists"}


def test_where_nothing_can_run_a_case_is_compiled_and_inspected() -> None:
    of = case(Problem((70,), (70,), 1, 1, 64, 64, "float16", mask=Causal(), backward=False), tile_m=64, tile_n=64)
    verdict = execute(of, BlockSparseTarget(), lambda phase, limit: None)
    assert verdict.outcome == "pass" and "not run" in verdict.reason


def test_it_is_part_of_a_session_on_the_host_and_its_mutants_are_not() -> None:
    found = targets(device="host")
    assert found["blocksparse"].device == ("emulator" if emulator_there() else "host")
    assert not any(name.startswith("blocksparse!") for name in found)
    planted = {
        name.partition("!")[2] for name in targets(device="cuda", mutants=True) if name.startswith("blocksparse!")
    }
    assert planted == set(MUTANTS)


def test_the_named_mutants_are_those_that_are_planted() -> None:
    from kernels.mutants.blocksparse.table import MUTANTS as planted

    assert tuple(planted) == MUTANTS


needs_emulator = pytest.mark.skipif(not emulator_there(), reason="needs the emulated GPU")


@needs_emulator
@pytest.mark.parametrize(
    ("problem", "variant"),
    [
        (Problem((70,), (150,), 2, 1, 64, 64, "float16", mask=Causal(), backward=False), {"tile_m": 64, "tile_n": 64}),
        (
            Problem((70, 0, 33), (90, 20, 0), 2, 1, 40, 40, "float16", layout="packed", softcap=5.0, backward=False),
            {"tile_m": 64, "tile_n": 64, "lists": "padded"},
        ),
        (
            Problem((66, 31), (40, 66), 1, 1, 64, 64, "bfloat16", mask=TWO_RUNS, backward=False),
            {"tile_m": 64, "tile_n": 64, "mask": "intervals", "warps": "random", "slots": 1},
        ),
    ],
)  # fmt: skip
def test_the_forward_kernel_is_right_on_the_emulated_gpu(problem: Problem, variant: dict) -> None:
    verdict = run(case(problem, **variant))
    assert verdict.outcome == "pass", verdict
    assert verdict.kernel.startswith("forward_") and verdict.kernel.endswith("sm_100a")


@needs_emulator
def test_hopper_s_tiles_of_192_queries_are_right_in_a_forward_pass() -> None:
    problem = Problem((200, 0, 33), (90, 20, 0), 2, 1, 40, 40, "float16", layout="packed", softcap=5.0, backward=False)
    verdict = run(case(problem, tile_m=192, tile_n=64, slots=1, warps="random", products="wgmma"))
    assert verdict.outcome == "pass", verdict
    assert "m192" in verdict.kernel and verdict.kernel.endswith("sm_90a")


@needs_emulator
@pytest.mark.parametrize(
    ("problem", "variant"),
    [
        (Problem((150,), (150,), 2, 1, 64, 64, "bfloat16", mask=Causal()), {"tile_m": 128, "mask": "band"}),
        pytest.param(
            Problem((70, 0, 33), (90, 20, 0), 2, 1, 40, 40, "float16", layout="packed", softcap=5.0),
            {"tile_m": 64},
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_hopper_s_forward_kernel_is_right_there_and_said_to_have_run(problem: Problem, variant: dict) -> None:
    verdict = run(case(problem, **variant, tile_n=64, slots=2, products="wgmma"))
    assert verdict.outcome == "pass", verdict
    launched = verdict.kernel.split(", ")
    assert "wgmma" in launched[0] and launched[0].endswith("sm_90a") and launched[-1].endswith("sm_100a")


@needs_emulator
@pytest.mark.parametrize(
    ("problem", "mask"),
    [
        (Problem((150,), (150,), 2, 1, 64, 64, "bfloat16", mask=Causal()), "band"),
        pytest.param(
            Problem((70, 0, 33), (90, 20, 0), 2, 1, 40, 40, "float16", layout="packed", softcap=5.0),
            "bits",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_blackwell_s_forward_kernel_is_right_and_said_to_have_run(problem: Problem, mask: str) -> None:
    verdict = run(case(problem, mask=mask, tile_n=64, slots=2, products="tcgen05"))
    assert verdict.outcome == "pass", verdict
    launched = verdict.kernel.split(", ")
    assert "tcgen05" in launched[0] and all(one.endswith("sm_100a") for one in launched) and len(launched) > 1


@needs_emulator
@pytest.mark.parametrize(("dim", "deterministic"), [(64, True), pytest.param(128, False, marks=pytest.mark.nightly)])
def test_blackwell_s_backward_kernel_is_right_and_said_to_have_run(dim: int, deterministic: bool) -> None:
    problem = Problem((150,), (150,), 2, 1, dim, dim, "bfloat16", mask=Causal())
    verdict = run(case(problem, mask="band", slots=2, products="tcgen05", deterministic=deterministic))
    assert verdict.outcome == "pass", verdict
    launched = [one for one in verdict.kernel.split(", ") if "preprocess" not in one]
    assert len(launched) == 3 and all("tcgen05" in one for one in launched), launched


def test_products_that_an_arch_lacks_are_not_asked_of_it() -> None:
    emulated, on_gpu = load("blocksparse"), GpuBlockSparse()
    of = case(products="wgmma")
    assert [one.arch for one in emulated.builds(of, "sm_100a")][:2] == ["sm_90a", "sm_100a"]  # type: ignore[attr-defined]
    assert on_gpu.builds(of, "sm_90a") and not on_gpu.builds(of, "sm_100a")
    for arch, tile_m, named in (("sm_90a", 128, "wgmma"), ("sm_90a", 64, "wgmma"), ("sm_80", 128, "mma")):
        forward, *_ = on_gpu.builds(case(tile_m=tile_m), arch)
        assert json.loads(forward.options)["products"] == named


@needs_emulator
@pytest.mark.nightly
@pytest.mark.parametrize(("dim", "dtype"), product([136, 192, 256], ["bfloat16", "float16"]))
def test_head_dims_above_128_are_right_on_the_emulated_gpu(dim: int, dtype: str) -> None:
    problem = Problem((70,), (100,), 2, 1, dim, dim, dtype, mask=Causal("bottom_right"))  # type: ignore[arg-type]
    (kernel,) = kernels_for(problem)
    verdict = run(case(problem, slots=2, **kernel))
    assert verdict.outcome == "pass" and verdict.kernel.count("backward_") == 1, verdict


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
def test_head_dims_above_128_are_refused_where_their_tiles_do_not_fit(
    monkeypatch: pytest.MonkeyPatch, arch: str
) -> None:
    monkeypatch.setenv("ATTNFUZZ_ARCH", arch)
    target = load("blocksparse")
    for dim, tile_n, taken in ((256, 64, arch != "sm_120a"), (192, 64, True), (192, 128, False)):
        of = case(Problem((70,), (100,), 2, 1, dim, dim, "float16"), tile_m=64, tile_n=tile_n)
        refused = refusal(target, of)
        assert (refused is None) == taken and (refused is None or refused.kind == "cannot"), (dim, tile_n, refused)
    forward = Problem((70,), (100,), 2, 1, 256, 256, "float16", backward=False)
    assert refusal(target, case(forward, tile_m=64, tile_n=128)) is None


@needs_emulator
def test_a_whole_pass_is_right_and_bitwise_the_same_in_any_order_of_warps() -> None:
    problem = Problem((260, 0), (200, 30), 2, 1, 64, 64, "float16", mask=PerHead((Window(100, 20), Causal())))
    verdict = run(case(problem, tile_m=64, tile_n=64, slots=2, schedule="shuffled", lists="compact"))
    assert verdict.outcome == "pass", verdict
    planned = run(case(problem, tile_m=64, tile_n=64, slots=2, schedule="planned", lists="compact"))
    assert planned.outcome == "pass", planned
    assert [name.partition("_")[0] for name in verdict.kernel.split(", ")] == [
        "forward",
        "preprocess",
        "backward",
        "postprocess",
    ]


PLANTED = Problem((260,), (200,), 2, 2, 64, 64, "float16", mask=PerHead((Window(100, 20), Causal())))
SHOWN = {
    "lock_is_n_block": "hang",
    "release_missing": "hang",
    "release_twice": "hang",
    "semaphores_not_cleared": "hang",
    "wait_missing": "floating-point_adds_in_no_fixed_order",
    "only_the_first_waits": "floating-point_adds_in_no_fixed_order",
    "tail_keys_not_masked": "o wrong",
    "sums_not_rescaled": "o wrong",
    "rank_direction": "hang",
    "rank_per_list": "hang",
    "head_ignored": "o wrong",
    "last_partial_block_lost": "o wrong",
    "barrier_before_reuse_missing": "race_write_over_an_unordered_read",
    "barrier_diverges": "barrier_in_a_divergent_branch",
    "tail_keys_read": "out_of_bounds",
    "dq_not_zeroed": "read_of_uninitialised_memory",
    "first_add_adds": "read_of_uninitialised_memory",
    "second_add_stores": "dq wrong",
}
OF_ATOMIC_ADDS = ("dq_not_zeroed",)
OF_DAILY = ("release_missing", "tail_keys_read", "first_add_adds")
PREDICTED = ("lock_is_n_block", "release_missing", "release_twice", "rank_direction", "rank_per_list")


@needs_emulator
@pytest.mark.parametrize("mutant", daily(list(SHOWN), OF_DAILY))
def test_a_planted_bug_is_found_on_the_emulated_gpu_where_the_correct_kernels_pass(mutant: str) -> None:
    verdict = run(case(PLANTED, mutant, tile_m=64, tile_n=64, slots=2, deterministic=mutant not in OF_ATOMIC_ADDS))
    found = {f.kind if f.oracle == "emulator" else f"{f.tensor} {f.kind}" for f in verdict.findings}
    assert SHOWN[mutant] in found, verdict
    if mutant in PREDICTED:
        assert "as predicted" in verdict.findings[0].message and "predicted" in verdict.evidence


@needs_emulator
def test_the_correct_kernels_pass_there() -> None:
    assert run(case(PLANTED, tile_m=64, tile_n=64, slots=2)).outcome == "pass"


@needs_emulator
def test_dq_may_differ_where_no_order_is_asked_for() -> None:
    target = load("blocksparse")
    assert target.may_differ(case(PLANTED, deterministic=False)) == {"dq"}
    assert target.may_differ(case(PLANTED)) == frozenset()
    assert run(case(PLANTED, tile_m=64, tile_n=64, deterministic=False)).outcome == "pass"


@needs_emulator
def test_without_queries_nothing_is_launched() -> None:
    verdict = run(case(Problem((0,), (70,), 1, 1, 64, 64, "float16", backward=False), tile_m=64, tile_n=64))
    assert verdict.outcome == "pass" and "nothing to launch" in verdict.kernel
