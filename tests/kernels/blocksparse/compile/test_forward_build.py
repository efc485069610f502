"""Forward kernels build for every arch without a GPU, from portable instructions, with everything in registers."""

import pytest
from covering import covering, nightly_unless

from kernels.blocksparse.spec import variant as variants
from kernels.blocksparse.spec.variant import ARCHES, NO_INJECTION, Injection, Variant, build_name, padded_dim

pytest.importorskip("cutlass")

from blocksparse_runs import ptx_of

from kernels.blocksparse.compile.build import build, export

SMALL = Variant("forward", "bfloat16", 32, 64, 64)


@pytest.mark.parametrize(
    ("arch", "mask"),
    [
        nightly_unless(not case.marks and case.values[0] == "sm_90a", *case.values)
        for case in covering(ARCHES, ["bits", "intervals"], strength=1)
    ],
)
def test_builds_for_every_arch_from_portable_instructions(arch, mask):
    ptx = ptx_of(Variant("forward", "float16", 64, 128, 64, mask, softcap=True), arch)
    assert f".target {arch}" in ptx
    for form in ("mma.sync.aligned.m16n8k16", "ldmatrix.sync", "cp.async.cg.shared.global"):
        assert form in ptx
    for form in ("wgmma", "tcgen05", "cp.async.bulk", "mbarrier"):
        assert form not in ptx


@pytest.mark.parametrize(
    ("mask", "dim"),
    [
        nightly_unless(not case.marks and case.values[0] == "intervals", *case.values)
        for case in covering(variants.MASKS, [32, 128], strength=1)
    ],
)
def test_arrays_of_a_thread_stay_in_registers(dim, mask):
    assert ".local" not in ptx_of(Variant("forward", "bfloat16", dim, 128, 64, mask), "sm_90a")


def test_exporting_writes_an_object_of_the_builds_name(tmp_path):
    path = export(SMALL, "sm_80", tmp_path)
    assert path == tmp_path / f"{build_name(SMALL, 'sm_80')}.o"
    assert path.read_bytes()[:4] == b"\x7fELF"


def test_names_tell_variants_apart():
    some = [
        SMALL,
        Variant("forward", "float16", 32, 64, 64),
        Variant("forward", "bfloat16", 64, 64, 64),
        Variant("forward", "bfloat16", 32, 128, 64),
        Variant("forward", "bfloat16", 32, 64, 128),
        Variant("forward", "bfloat16", 32, 64, 64, "bits"),
        Variant("forward", "bfloat16", 32, 64, 64, softcap=True),
        SMALL.with_tuning(stages=1),
        Variant("backward", "bfloat16", 32, 64, 64),
        Variant("backward", "bfloat16", 32, 64, 64, deterministic=True),
    ]
    names = [build_name(v, "sm_80") for v in some] + [build_name(SMALL, "sm_90a")]
    names += [build_name(SMALL, "sm_80", Injection("planted", {"correction": max}))]
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() for name in names)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"kind": "sideways"}, "kind"),
        ({"dtype": "float32"}, "dtype"),
        ({"dim_padded": 48}, "dim_padded"),
        ({"tile_m": 32}, "tile_m"),
        ({"mask": "causal"}, "mask"),
        ({"deterministic": True}, "deterministic"),
        ({"tuning": (("warps", 4), ("stages", 1))}, "tuning"),
    ],
)
def test_a_variant_that_cannot_be_names_its_field(change, field):
    values = {"kind": "forward", "dtype": "bfloat16", "dim_padded": 64, **change}
    with pytest.raises(ValueError, match=f"variant.{field}"):
        Variant(**values)


@pytest.mark.parametrize("values", [{"warps": 3}, {"step": 48}, {"stages": 3}, {"colour": 1}])
def test_a_tuning_that_cannot_work_is_refused(values):
    with pytest.raises(ValueError, match="tuning"):
        build(SMALL.with_tuning(**values), "sm_80")


def test_unknown_archs_and_injection_points_are_refused():
    with pytest.raises(ValueError, match="sm_75"):
        build(SMALL, "sm_75")
    with pytest.raises(ValueError, match=r"no injection point \['lock_of'\]"):
        build(SMALL, "sm_80", Injection("planted", {"lock_of": max}))
    with pytest.raises(ValueError, match="name"):
        Injection("", {"correction": max})
    assert NO_INJECTION.pick("correction", max) is max


@pytest.mark.parametrize(("dim", "padded"), [(8, 32), (32, 32), (40, 64), (72, 96), (96, 96), (104, 128), (128, 128)])
def test_dims_are_padded_to_the_next_that_is_built(dim, padded):
    assert padded_dim(dim) == padded


@pytest.mark.parametrize("dim", [0, 4, 12, 260, 264])
def test_dims_that_no_kernel_has_are_refused(dim):
    with pytest.raises(ValueError, match="dim is"):
        padded_dim(dim)
