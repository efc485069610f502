"""The Hopper forward kernel: what it is built from, what is refused, what it computes there or on the emulated GPU."""

import re
import shutil
import subprocess

import pytest
import torch
from blocksparse_runs import DEVICE, HOPPER, ptx_of, run_forward
from covering import covering, daily, nightly_unless
from forward_cases import Case, drawn, errors, problem

pytest.importorskip("cutlass")

from kernels.blocksparse.compile.build import build
from kernels.blocksparse.forward import kernel as forward
from kernels.blocksparse.forward import mainloop
from kernels.blocksparse.forward.kernel import Forward
from kernels.blocksparse.spec.variant import MASKS, NO_INJECTION, Injection, Variant, build_name, forward_products


def variant(dim=64, tile_m=128, tile_n=128, mask="none", **options):
    return Variant("forward", "bfloat16", dim, tile_m, tile_n, mask, products="wgmma", **options)


@pytest.mark.parametrize("dim", [32, 96, 128])
def test_products_are_of_warpgroups_and_loads_portable(dim):
    ptx = ptx_of(variant(dim, tile_n=64), "sm_90a")
    assert f"wgmma.mma_async.sync.aligned.m64n{dim}k16.f32.bf16.bf16" in ptx
    for form in ("cp.async.cg.shared.global", "mbarrier.try_wait.parity", "fence.proxy.async"):
        assert form in ptx
    for form in ("mma.sync", "ldmatrix", "cp.async.bulk"):
        assert form not in ptx


@pytest.mark.parametrize("mask", daily(MASKS, ["intervals", "band"]))
def test_arrays_of_a_thread_stay_in_registers(mask):
    assert ".local" not in ptx_of(variant(128, mask=mask), "sm_90a")


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="needs ptxas")
@pytest.mark.parametrize("dim", daily([64, 128, 256], [128]))
def test_nothing_is_spilled(dim, tmp_path):
    path = tmp_path / "kernel.ptx"
    path.write_text(ptx_of(variant(dim, tile_n=64, mask="bits"), "sm_90a"))
    command = ["ptxas", "-v", "-arch=sm_90a", str(path), "-o", str(tmp_path / "kernel.cubin")]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Unsupported .version" in said.stderr:
        pytest.skip("this ptxas is too old for the PTX")
    assert re.search(r"\b0 bytes spill stores, 0 bytes spill loads", said.stderr), said.stderr


@pytest.mark.parametrize("arch", ["sm_80", "sm_100a", "sm_120a"])
def test_other_archs_are_refused(arch):
    assert forward_products(arch, 128) == "mma"
    with pytest.raises(ValueError, match="products"):
        build(variant(), arch)


def test_a_variant_says_its_products_and_only_kernels_that_multiply_have_them():
    assert build_name(variant(), "sm_90a") != build_name(Variant("forward", "bfloat16", 64), "sm_90a")
    with pytest.raises(ValueError, match=r"variant\.products"):
        Variant("preprocess", "bfloat16", 64, products="wgmma")
    with pytest.raises(ValueError, match=r"variant\.products"):
        Variant("forward", "bfloat16", 64, products="simt")


@pytest.mark.parametrize("tuning", [{"step": 48}, {"stages": 3}, {"warps": 4}, {"ctas": 3}, {"registers": 248}])
def test_a_tuning_that_cannot_work_is_refused(tuning):
    with pytest.raises(ValueError, match=r"variant\.tuning"):
        build(variant(128).with_tuning(**tuning), "sm_90a")


def run(p, injection=NO_INJECTION, resident=None):
    """On the emulated GPU anything that its checks find fails. resident: persistent CTAs; returns the tile numbers
    taken."""
    tile_counter = None if resident is None else torch.zeros(1, dtype=torch.int32, device=p.q.device)
    run_forward(p, injection, "sm_90a", resident=resident, tile_counter=tile_counter)
    return 0 if tile_counter is None else int(tile_counter)


@pytest.mark.parametrize("seed", range(24 if HOPPER else 8))
def test_random_problems_are_right(seed):
    p = problem(drawn(seed, products="wgmma"), DEVICE)
    run(p)
    assert max(errors(p)) <= 1, (errors(p), p.case)


@pytest.mark.parametrize(("seed", "resident"), covering(range(24 if HOPPER else 4), [1, 2, 3], strength=1))
def test_ctas_that_stay_take_every_tile_once(seed, resident):
    """Bit for bit what a CTA for each tile computes, with tile numbers for all tiles but the first ones and an end for
    each CTA."""
    p = problem(drawn(seed, products="wgmma"), DEVICE)
    run(p)
    tiles, alone = p.sequences.batch * p.case.heads_q * p.blocks.m_blocks, (p.o.clone(), p.lse.clone())
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


def test_the_portable_kernels_injection_points_are_there():
    called = set()

    def noted(point):
        default = getattr(mainloop, point, None) or getattr(forward, point)

        def replacement(*arguments):
            called.add(point)
            return default(*arguments)

        return replacement

    injection = Injection("planted", {point: noted(point) for point in Forward.INJECTION_POINTS})
    build(variant(mask="band", tile_m=64, tile_n=64), "sm_90a", injection)
    assert called == set(Forward.INJECTION_POINTS)


@pytest.mark.parametrize(
    ("point", "replacement", "spread"),
    [
        nightly_unless(False, "keep_keys", lambda rows, keys_left: None, 0.5),
        nightly_unless(False, "correction", lambda old, new: 1.0, 4.0),
        ("kv_head_of", lambda head, heads_q, heads_kv: head % heads_kv, 1.0),
    ],
)
def test_a_planted_bug_shows(point, replacement, spread):
    case = Case((100,), (140,), heads_q=4, heads_kv=2, spread=spread, tile_m=128, tile_n=64, products="wgmma")
    p = problem(case, DEVICE)
    run(p, Injection(f"planted_{point}", {point: replacement}))
    assert max(errors(p)) > 1
