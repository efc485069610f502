"""The Hopper forward kernel: what it is built from, what is refused, what it computes there or on the emulated GPU."""

import re
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from blocksparse_runs import DEVICE, HOPPER, ptx_of, run_forward
from covering import covering, daily, nightly_unless
from forward_cases import Case, drawn, errors, problem

pytest.importorskip("cutlass")

from cutlass import Boolean, cute

from fuzz.devices.emulator import EmulationError
from kernels.blocksparse.compile.build import build
from kernels.blocksparse.forward import kernel as forward
from kernels.blocksparse.forward import mainloop
from kernels.blocksparse.forward.hopper.tuning import hopper_tuning
from kernels.blocksparse.forward.kernel import Forward
from kernels.blocksparse.launch.forward import for_operands, tiles_of_queries
from kernels.blocksparse.spec.variant import (
    MASKS,
    NO_INJECTION,
    WIDE,
    Injection,
    Variant,
    build_name,
    forward_products,
)

BY_TMA = {"rescale": 1, "tma": 1, "turns": 1}

CUOBJDUMP = Path(find_spec("triton").origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def variant(dim=64, tile_m=128, tile_n=128, mask="none", **options):
    return Variant("forward", "bfloat16", dim, tile_m, tile_n, mask, products="wgmma", **options)


@pytest.mark.parametrize(
    ("dim", "tma"),
    [
        nightly_unless(not case.marks and case.values[0] != 128, *case.values)
        for case in covering([32, 96, 128], [0, 1], strength=1)
    ],
)
def test_products_are_of_warpgroups_and_loads_by_tma_or_portable(dim, tma):
    ptx = ptx_of(variant(dim, tile_n=64).with_tuning(tma=tma), "sm_90a")
    assert f"wgmma.mma_async.sync.aligned.m64n{dim}k16.f32.bf16.bf16" in ptx
    for form in ("cp.async.cg.shared.global", "mbarrier.try_wait.parity", "fence.proxy.async"):
        assert form in ptx
    for form in ("cp.async.bulk.tensor.4d", "mbarrier.arrive.expect_tx"):
        assert (form in ptx) == bool(tma)
    for form in ("mma.sync", "ldmatrix"):
        assert form not in ptx


@pytest.mark.parametrize("mask", daily(MASKS, ["band"]))
def test_arrays_of_a_thread_stay_in_registers(mask):
    assert ".local" not in ptx_of(variant(128, mask=mask), "sm_90a")


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="needs ptxas")
@pytest.mark.parametrize("dim", daily([64, 128, 256], [128]))
@pytest.mark.parametrize("tuning", [{}, nightly_unless(False, BY_TMA)])
def test_nothing_is_spilled(dim, tuning, tmp_path):
    path = tmp_path / "kernel.ptx"
    path.write_text(ptx_of(variant(dim, tile_n=64, mask="bits").with_tuning(**tuning), "sm_90a"))
    command = ["ptxas", "-v", "-arch=sm_90a", str(path), "-o", str(tmp_path / "kernel.cubin")]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Unsupported .version" in said.stderr:
        pytest.skip("this ptxas is too old for the PTX")
    assert re.search(r"\b0 bytes spill stores, 0 bytes spill loads", said.stderr), said.stderr
    assert "serialized" not in said.stderr, said.stderr


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="needs ptxas")
@pytest.mark.parametrize("mask", daily(MASKS, ["bits"]))
def test_products_of_wide_tiles_are_not_serialised(mask, tmp_path):
    """NOTE [wide tiles]: with fewer registers ptxas says C7512 and waits for each product."""
    path = tmp_path / "kernel.ptx"
    path.write_text(ptx_of(variant(tile_m=WIDE, mask=mask), "sm_90a"))
    command = ["ptxas", "-v", "-arch=sm_90a", str(path), "-o", str(tmp_path / "kernel.cubin")]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Unsupported .version" in said.stderr:
        pytest.skip("this ptxas is too old for the PTX")
    assert said.returncode == 0 and "serialized" not in said.stderr, said.stderr


@pytest.mark.skipif(shutil.which("ptxas") is None or not CUOBJDUMP.exists(), reason="needs ptxas and cuobjdump")
@pytest.mark.parametrize("tile_n", daily([64, 128], [64]))
def test_factors_of_sums_are_exactly_one_where_no_maximum_has_moved(tile_n, tmp_path):
    """Their exponents are products of a difference. A difference of products would be one product fused with the other
    one's rounded value (FFMA), which is not 0 where they are equal: LSE drifts over the steps of wide tiles, which
    rescale in each. The exponents of scores are fused so: 32 of a thread in a step of 64 keys."""
    path, cubin = tmp_path / "kernel.ptx", tmp_path / "kernel.cubin"
    path.write_text(ptx_of(variant(tile_m=WIDE, tile_n=tile_n, mask="bits"), "sm_90a"))
    said = subprocess.run(["ptxas", "-arch=sm_90a", path, "-o", cubin], capture_output=True, text=True, check=False)
    if "Unsupported .version" in said.stderr:
        pytest.skip("this ptxas is too old for the PTX")
    sass = subprocess.run([CUOBJDUMP, "-sass", cubin], capture_output=True, text=True, check=True).stdout
    writer, exponents = dict[str, str](), Counter[str]()
    for operation, written, read in re.findall(r"([A-Z0-9_.]+) (R\d+)(?:, -?\|?(R\d+))?", sass):
        if operation == "MUFU.EX2":
            exponents[writer.get(read, "")] += 1
        writer[written] = operation
    steps = exponents["FFMA"] // (tile_n // 2)
    assert steps >= 1 and exponents == {"FFMA": steps * tile_n // 2, "FMUL": 2 * steps}


@pytest.mark.parametrize("arch", ["sm_80", "sm_100a", "sm_120a"])
def test_other_archs_are_refused(arch):
    assert forward_products(arch, 128) == "mma"
    with pytest.raises(ValueError, match="products"):
        build(variant(), arch)


@pytest.mark.parametrize("tile_m", [64, 128, WIDE])
def test_the_hopper_kernel_is_the_default_of_its_arch(tile_m):
    assert forward_products("sm_90a", tile_m) == "wgmma"


def test_wide_tiles_have_a_third_stage_where_loads_take_no_registers():
    wide = variant(tile_m=WIDE)
    assert [hopper_tuning(wide.with_tuning(tma=tma)).stages for tma in (0, 1)] == [2, 3]
    assert hopper_tuning(wide).stages == 3 and hopper_tuning(variant()).stages == 2


def test_a_variant_says_its_products_and_only_kernels_that_multiply_have_them():
    assert build_name(variant(), "sm_90a") != build_name(Variant("forward", "bfloat16", 64), "sm_90a")
    with pytest.raises(ValueError, match=r"variant\.products"):
        Variant("preprocess", "bfloat16", 64, products="wgmma")
    with pytest.raises(ValueError, match=r"variant\.products"):
        Variant("forward", "bfloat16", 64, products="simt")


@pytest.mark.parametrize(
    "wrong", [{"kind": "backward"}, {"products": "mma"}, {"products": "tcgen05"}, {"dim_padded": 96}]
)
def test_wide_tiles_are_refused_where_no_kernel_has_them(wrong):
    kind, dtype, dim = "forward", "bfloat16", 64
    fields = {"kind": kind, "dtype": dtype, "dim_padded": dim, "tile_m": WIDE, "products": "wgmma"}
    assert Variant(**fields).tile_m == WIDE
    with pytest.raises(ValueError, match=r"variant\.tile_m 192"):
        Variant(**fields | wrong)


@pytest.mark.parametrize(
    "tuning",
    [
        *({"step": 48}, {"stages": 3}, {"warps": 4}, {"ctas": 3}, {"registers": 248}, {"tma": 2}, {"turns": -1}),
        *({"late": 2}, {"rescale": 2}, {"held": 2}, {"lead": -1}),
        *({"loading": 12}, {"stages": 5, "tma": 1}, {"stages": 3, "tma": 1}),
    ],
)
def test_a_tuning_that_cannot_work_is_refused(tuning):
    with pytest.raises(ValueError, match=r"variant\.tuning"):
        build(variant(128).with_tuning(**tuning), "sm_90a")


def run(p, injection=NO_INJECTION, resident=None):
    """On the emulated GPU anything that its checks find fails. resident: persistent CTAs; returns the tile numbers
    taken."""
    tile_counter = None if resident is None else torch.zeros(1, dtype=torch.int32, device=p.q.device)
    run_forward(p, injection, "sm_90a", resident=resident, tile_counter=tile_counter)
    return 0 if tile_counter is None else int(tile_counter)


@pytest.mark.parametrize("seed", range(24) if HOPPER else daily(range(8), [1]))
def test_random_problems_are_right(seed):
    p = problem(drawn(seed, products="wgmma"), DEVICE)
    run(p)
    assert max(errors(p)) <= 1, (errors(p), p.case)


@pytest.mark.parametrize("seed", range(100, 124) if HOPPER else daily(range(100, 108), [103]))
def test_random_problems_by_tma_and_in_turns_are_right(seed):
    p = problem(drawn(seed, products="wgmma", tile_m=128, tuning=tuple(BY_TMA.items())), DEVICE)
    run(p, resident=seed % 4 or None)
    assert max(errors(p)) <= 1, (errors(p), p.case)


@pytest.mark.parametrize(
    ("held", "tma", "turns", "rescale", "stages", "tiles", "step"),
    [
        *(
            nightly_unless(not case.marks and (HOPPER or case.values[0] == 1), *case.values)
            for case in covering(
                *([0, 1], [0, 1], [0, 1], [0, 1], [1, 2], [1, 2], [32, 64, 128]), strength=2 if HOPPER else 1
            )
        ),
        *(nightly_unless(HOPPER, *one) for one in ((1, 1, 1, 1, 4, 1, 64), (0, 1, 0, 0, 3, 2, 128))),
    ],
)
def test_every_tuning_computes_the_same(held, tma, turns, rescale, stages, tiles, step):
    tuning = (
        *(("held", held), ("rescale", rescale), ("stages", stages), ("step", step), ("tiles", tiles), ("tma", tma)),
        ("turns", turns),
    )
    case = Case((130, 60), (400, 129), heads_q=1, heads_kv=1, mask="tokens", tile_m=128, tile_n=128, spread=3.0)
    p = problem(replace(case, products="wgmma", tuning=tuning), DEVICE)
    run(p, resident=2)
    assert max(errors(p)) <= 1, errors(p)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("packed", [True, False])
def test_rows_after_a_sequence_may_hold_anything(packed, value):
    """In a packed layout they are the next sequence's rows. The first sequence's tiles end at 140 and 200 rows."""
    case = Case((140, 30), (200, 130), 2, 1, packed=packed, tile_m=128, tile_n=128, products="wgmma")
    p = problem(replace(case, tuning=tuple(BY_TMA.items())), DEVICE)
    run(p)
    rows = (slice(0, 140),) if packed else (0, slice(0, 140))
    clean = p.o[rows].clone()
    for x, lengths in ((p.q, p.case.lengths_q), (p.k, p.case.lengths_k), (p.v, p.case.lengths_k)):
        x[(slice(lengths[0], None),) if packed else (0, slice(lengths[0], None))] = value
    p.o.fill_(torch.nan)
    run(p)
    assert torch.equal(p.o[rows], clean)


@pytest.mark.parametrize(
    ("layout", "dim"), [((0, 2, 1, 3), 64), ((1, 0, 2, 3), 40), nightly_unless(False, (2, 1, 0, 3), 128)]
)
def test_tensor_maps_of_any_strides(layout, dim):
    """The dims of q, k and v lie in memory in another order, some of them further apart than they need."""
    case = Case((140, 128), (128, 300), 2, 1, dim=dim, mask="tokens", tile_m=128, tile_n=128, products="wgmma")
    p = problem(replace(case, tuning=tuple(BY_TMA.items())), DEVICE)
    for name in ("q", "k", "v"):
        x = getattr(p, name)
        inverse = [layout.index(i) for i in range(4)]
        moved = torch.nn.functional.pad(x.permute(layout), (0, 8, 0, 1))[..., :-1, : x.shape[-1]].permute(inverse)
        p = replace(p, **{name: moved})
    run(p)
    assert max(errors(p)) <= 1, errors(p)


def test_strides_that_a_tensor_map_cannot_have_are_loaded_without_one():
    of = variant().with_tuning(tma=1)
    near = torch.empty_strided((2, 10, 1, 64), ((1 << 39) - 8, 64, 64, 1), dtype=torch.bfloat16, device="meta")
    far = torch.empty_strided((2, 10, 1, 64), (1 << 39, 64, 64, 1), dtype=torch.bfloat16, device="meta")
    assert for_operands(of, near, near, near) == of
    for operands in ((far, near, near), (near, far, near), (near, near, far)):
        assert dict(for_operands(of, *operands).tuning)["tma"] == 0


@pytest.mark.parametrize("mask", daily(["dense", "tokens", "blocks", "intervals", "band"], ["dense"]))
@pytest.mark.parametrize("seed", range(4 if HOPPER else 1))
def test_random_problems_are_right_with_wide_tiles(mask, seed):
    options = {"tile_m": WIDE, "tile_n": 128, "products": "wgmma", "mask": mask}
    p = problem(drawn(seed + 10 * len(mask), dim=(64, 40)[seed % 2], **options), DEVICE)
    run(p)
    assert max(errors(p)) <= 1, (errors(p), p.case)


@pytest.mark.parametrize("resident", [1, 2])
def test_ctas_that_stay_take_every_wide_tile_once(resident):
    case = Case((600, 1, 192, 0), (90, 200, 0, 64), heads_q=2, heads_kv=1, mask="band", tile_m=WIDE, tile_n=128)
    p = problem(replace(case, products="wgmma", softcap=20.0, packed=resident == 1), DEVICE)
    # packed sequences have the tiles that there are, padded ones as many as the longest
    assert run(p, resident=resident) == (4 + 1 + 1 if resident == 1 else 4 * 4) * 2
    assert max(errors(p)) <= 1, errors(p)


@pytest.mark.parametrize("len_k", [128, 192, 193, 256])
@pytest.mark.parametrize("mask", daily(["dense", "band"], ["band"]))
def test_keys_may_end_at_a_block_at_a_step_or_inside_one(mask, len_k):
    """Steps after those of partial blocks have no mask only where the keys end with a block."""
    case = Case((40, 300), (256, len_k), heads_q=1, heads_kv=1, mask=mask, tile_n=128, left=None, right=200, spread=0.5)
    p = problem(replace(case, products="wgmma", softcap=20.0, tuning=(("step", 64),)), DEVICE)
    run(p)
    assert max(errors(p)) <= 1, errors(p)


@pytest.mark.parametrize("tile_m", daily([64, 128, WIDE], [64]))
@pytest.mark.parametrize("held", daily([0, 1], [1]))
def test_a_buffer_is_used_again_in_steps_without_a_mask(tile_m, held):
    """Two buffers and six steps, none of which has a mask. The checks see a load before a product's last read."""
    case = Case((tile_m,), (768,), heads_q=1, heads_kv=1, tile_m=tile_m, tile_n=128, products="wgmma")
    p = problem(replace(case, tuning=(("held", held),)), DEVICE)
    run(p)
    assert max(errors(p)) <= 1, errors(p)


@pytest.mark.parametrize("lead", daily([0, 1, 3], [1]))
def test_ctas_take_the_next_tile_at_any_step_of_one(lead):
    """Tiles of 0 to 5 steps of keys, so with fewer steps than `lead`, as many, and more."""
    case = Case((330, 64), (300, 0), heads_q=2, heads_kv=1, mask="band", tile_m=64, tile_n=64, products="wgmma")
    p = problem(replace(case, tuning=(("lead", lead),)), DEVICE)
    assert run(p, resident=2) == 2 * 2 * 6
    assert max(errors(p)) <= 1, errors(p)


@pytest.mark.parametrize(
    ("seed", "resident"),
    [
        nightly_unless(not case.marks and (HOPPER or case.values[0] == 1), *case.values)
        for case in covering(range(24 if HOPPER else 4), [1, 2, 3], strength=1)
    ],
)
def test_ctas_that_stay_take_every_tile_once(seed, resident):
    """Bit for bit what a CTA for each tile computes, with tile numbers for all tiles but the first ones and an end for
    each CTA."""
    p = problem(drawn(seed, products="wgmma"), DEVICE)
    run(p)
    tiles, alone = tiles_of_queries(p.q, p.blocks, p.sequences.batch), (p.o.clone(), p.lse.clone())
    p.o.fill_(torch.nan)
    p.lse.fill_(torch.nan)
    taken = run(p, resident=resident)
    assert taken == (tiles if resident < tiles else 0)
    for x, y in zip((p.o, p.lse), alone, strict=True):
        assert torch.equal(x.nan_to_num(7.0), y.nan_to_num(7.0))


def test_a_sequence_that_ends_early_leaves_tiles_that_are_skipped():
    case = Case((300, 1, 130, 0), (90, 200, 0, 64), heads_q=2, heads_kv=1, tile_m=128, tile_n=64, products="wgmma")
    p = problem(case, DEVICE)
    assert run(p, resident=2) == 4 * 2 * 3
    assert max(errors(p)) <= 1, errors(p)


@pytest.mark.parametrize("tuning", [{}, BY_TMA])
def test_the_portable_kernels_injection_points_are_there(tuning):
    called = set()

    def noted(point):
        default = getattr(mainloop, point, None) or getattr(forward, point)

        def replacement(*arguments):
            called.add(point)
            return default(*arguments)

        return replacement

    injection = Injection("planted", {point: noted(point) for point in Forward.INJECTION_POINTS})
    build(variant(mask="band", tile_m=64, tile_n=64).with_tuning(**tuning), "sm_90a", injection)
    assert called == set(Forward.INJECTION_POINTS)


@cute.jit
def _at_once(buffers, stage):
    pass


@cute.jit
def _any_tile(left, rows):
    return Boolean(True)


@cute.jit
def _no_fence():
    pass


@pytest.mark.skipif(HOPPER, reason="the emulated GPU finds what a GPU may let pass")
@pytest.mark.parametrize(
    ("point", "replacement"),
    [
        ("wait_empty", _at_once),
        nightly_unless(False, "wait_filled", _at_once),
        nightly_unless(False, "whole", _any_tile),
        nightly_unless(False, "fence_shared", _no_fence),
        nightly_unless(False, "expected_bytes", lambda count: count // 2),
        nightly_unless(False, "expected_bytes", lambda count: 2 * count),
    ],
)
def test_a_wrong_load_by_tma_is_found(point, replacement):
    case = Case((300,), (600,), 1, 1, tile_m=128, tile_n=128, products="wgmma", tuning=tuple(BY_TMA.items()))
    p = problem(case, DEVICE)
    run(p, resident=1)
    injection = Injection(f"planted_{point}", {point: replacement})
    with pytest.raises(EmulationError):
        run(p, injection, resident=1)


@pytest.mark.parametrize(
    ("point", "replacement", "spread"),
    [
        nightly_unless(False, "keep_keys", lambda rows, keys_left: None, 0.5),
        nightly_unless(False, "correction", lambda old, new, to_log2: 1.0, 4.0),
        ("kv_head_of", lambda head, heads_q, heads_kv: head % heads_kv, 1.0),
    ],
)
def test_a_planted_bug_shows(point, replacement, spread):
    case = Case((100,), (140,), heads_q=4, heads_kv=2, spread=spread, tile_m=128, tile_n=64, products="wgmma")
    p = problem(case, DEVICE)
    run(p, Injection(f"planted_{point}", {point: replacement}))
    assert max(errors(p)) > 1
