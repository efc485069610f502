"""The emulator against what a GPU answered (ci/emulator_vs_gpu.py): bitwise, but for the approximate functions, whose
documented errors bound the difference, and sums of random matrix products, which tensor cores round in their own
way."""

import json
from pathlib import Path

import numpy as np
import pytest

from fuzz.devices.emulator.conformance import agreement, micro_kernels, suite

RESULTS = sorted(Path(__file__).parents[5].joinpath("ci", "results").glob("ptx_sm_*.json"))
# the errors that the PTX manual documents for both sides together: relative, absolute
BOUNDS = {
    "ex2": (2**-21, 0.0),
    "lg2": (2**-21, 2**-21),
    "rcp": (2**-22, 0.0),
    "rsqrt": (2**-21.9, 0.0),
    "sqrt": (2**-21, 0.0),
    "tanh": (2**-10, 0.0),
    "div": (2**-21, 0.0),
    "mma": (2**-19, 2**-17),
    "wgmma": (2**-19, 2**-16),
}
AGREEMENT = Path(__file__).parents[5] / "ci" / "results" / "ptx_agreement.json"
FORMS = [k.form for k in suite.all_kernels()]


def near(form, ours, theirs):
    """Are two answers of an approximate form as close as documented? Special values must agree."""
    name = form.split(".")[0]
    if agreement.sums_in_f16(form):
        x, y = (v.view(np.float16).astype(np.float64) for v in (ours, theirs))
        relative, absolute = 2**-9, 2**-8
    else:
        x, y = (v.view(np.float32).astype(np.float64) for v in (ours, theirs))
        relative, absolute = BOUNDS[name]
    special = ~np.isfinite(y) | ~np.isfinite(x)
    with np.errstate(invalid="ignore"):
        close = np.abs(x - y) <= relative * np.abs(y) + absolute + 2.0**-126
        return np.where(special, (np.isnan(x) & np.isnan(y)) | (x == y), close).all()


@pytest.fixture(scope="module")
def kernels():
    return {k.form: k for k in suite.all_kernels()}


@pytest.fixture(scope="module")
def measured():
    """What the emulator was last measured to be from each GPU's answers."""
    return {path: agreement.measure(path.with_suffix(".npz")) for path in RESULTS}


@pytest.mark.skipif(not RESULTS, reason="no results of a GPU are committed yet: ci/emulator_vs_gpu.py")
def test_exact_forms_answer_bit_for_bit_as_the_gpu_did(measured):
    stated = json.loads(AGREEMENT.read_text())
    for path, found in measured.items():
        # what differs is stated, and what was mended leaves the statement
        assert set(found["differ"]) == set(stated[path.stem]["differ"]), found["differ"]
        assert found["not_emulated"] == stated[path.stem].get("not_emulated", {})
        assert found["raised"] == stated[path.stem]["raised"]
        assert found["bitwise"] > 2000


@pytest.mark.skipif(not RESULTS, reason="no results of a GPU are committed yet: ci/emulator_vs_gpu.py")
def test_approximate_forms_are_as_near_as_stated(measured):
    stated = json.loads(AGREEMENT.read_text())
    for path, found in measured.items():
        bounds = stated[path.stem]["approximate"]
        assert set(found["approximate"]) == set(bounds)
        for form, distance in found["approximate"].items():
            for what in ("special", "relative", "absolute"):
                assert distance[what] <= bounds[form][what], (form, what)


@pytest.mark.skipif(not RESULTS, reason="no results of a GPU are committed yet: ci/emulator_vs_gpu.py")
def test_approximate_forms_are_as_near_as_ptx_documents(kernels):
    for path in RESULTS:
        recorded = json.loads(path.read_text())["forms"]
        kept = np.load(path.with_suffix(".npz"))
        for form, kernel in kernels.items():
            # of sums of numbers of many sizes, what is left may be as small as the error of the largest
            if kernel.exact or not isinstance(recorded.get(form), str) or form.endswith((" nan", " wide")):
                continue
            ours, theirs = suite.emulate(kernel)[: len(kept[form])], kept[form]
            if form.split(".")[0] in ("sin", "cos"):
                usual = np.abs(kernel.inputs[0].view(np.float32)[: len(theirs)]) <= np.pi
                got, want = (v[:, 0].view(np.float32)[usual] for v in (ours, theirs))
                assert np.allclose(got, want, rtol=0, atol=2**-20), form
            else:
                assert near(form, ours, theirs), form


def test_the_set_covers_every_form_that_the_table_has():
    table = {f for f in micro_kernels.FORMS if not f.startswith(micro_kernels.INTERNAL)}
    assert table <= set(FORMS)
    assert len(FORMS) == len(set(FORMS))


def operands(form):
    kernel = next(k for k in micro_kernels.form_kernels() if k.form == form)
    return kernel.inputs, suite.emulate(kernel)


def floats(x):
    return x.view(np.float32)


@pytest.mark.parametrize(
    "form,expected",
    [
        ("add.f32", lambda a, b: floats(a) + floats(b)),
        ("mul.rn.f32", lambda a, b: floats(a) * floats(b)),
        ("sub.f32", lambda a, b: floats(a) - floats(b)),
        ("div.rn.f32", lambda a, b: floats(a) / floats(b)),
        ("sqrt.rn.f32", lambda a: np.sqrt(floats(a))),
        ("cvt.rn.f32.s32", lambda a: a.view(np.int32).astype(np.float32)),
        ("cvt.rn.f32.u64", lambda a: a.astype(np.float32)),
    ],
)
def test_arithmetic_agrees_with_numpy(form, expected):
    inputs, out = operands(form)
    with np.errstate(all="ignore"):
        want = expected(*inputs).astype(np.float32)
    got = out[:, 0].view(np.float32)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    number = ~np.isnan(want)
    assert np.array_equal(got[number].view(np.uint32), want[number].view(np.uint32))
    assert (out[~number, 0] == 0x7FFFFFFF).all()


@pytest.mark.parametrize("rounding,way", [("rz", 0), ("rm", -1), ("rp", 1)])
@pytest.mark.parametrize("operation", ["add", "mul"])
def test_directed_rounding_brackets_the_exact_result(operation, rounding, way):
    (a, b), out = operands(f"{operation}.{rounding}.f32")
    from fractions import Fraction

    checked = 0
    for x, y, bits in zip(floats(a), floats(b), out[:, 0], strict=True):
        r = np.uint32(bits).view(np.float32)
        if not (np.isfinite(x) and np.isfinite(y) and np.isfinite(r)):
            continue
        exact = (
            Fraction(float(x)) + Fraction(float(y)) if operation == "add" else Fraction(float(x)) * Fraction(float(y))
        )
        direction = way or (-1 if exact > 0 else 1)
        got = Fraction(float(r))
        assert got <= exact if direction < 0 else got >= exact
        with np.errstate(over="ignore"):
            beyond = np.nextafter(r, np.float32(np.inf if direction < 0 else -np.inf))
        if np.isfinite(beyond) and got != exact:
            assert Fraction(float(beyond)) > exact if direction < 0 else Fraction(float(beyond)) < exact
        checked += 1
    assert checked > 1000


@pytest.mark.parametrize(
    "form,expected",
    [
        ("mul.hi.s32", lambda a, b: (a.view(np.int32).astype(np.int64) * b.view(np.int32) >> 32).astype(np.uint32)),
        ("mul.wide.u32", lambda a, b: a.astype(np.uint64) * b.astype(np.uint64)),
        ("shr.s32", lambda a, b: (a.view(np.int32) >> np.minimum(b, 31).astype(np.int32)).view(np.uint32)),
        ("shl.b32", lambda a, b: np.where(b > 31, 0, a << np.minimum(b, 31)).astype(np.uint32)),
        ("popc.b32", lambda a: np.array([int(v).bit_count() for v in a], dtype=np.uint32)),
        ("max.s32", lambda a, b: np.maximum(a.view(np.int32), b.view(np.int32)).view(np.uint32)),
        ("setp.lt.u32", lambda a, b: (a < b).astype(np.uint32)),
        ("rem.u32", lambda a, b: np.where(b == 0, 0xFFFFFFFF, a % np.maximum(b, 1)).astype(np.uint32)),
        ("cvt.sat.u64.s32", lambda a: np.maximum(a.view(np.int32), 0).astype(np.uint64)),
        ("cvt.sat.s64.u64", lambda a: np.minimum(a, np.uint64(2**63 - 1))),
    ],
)
def test_integers_agree_with_numpy(form, expected):
    inputs, out = operands(form)
    want = expected(*inputs)
    assert np.array_equal(out.reshape(-1).view(want.dtype), want)


def test_results_are_flushed_that_are_below_the_normal_numbers_when_rounded_without_an_end_of_exponents():
    kernel = next(k for k in micro_kernels.tiny_kernels() if k.form == "mul.rn.ftz.f32 tiny")
    a, b = (x.view(np.float32).astype(np.float64) for x in kernel.inputs)
    out = suite.emulate(kernel)[:, 0].view(np.float32)
    exact = a * b
    rounded = (exact * 2.0**64).astype(np.float32).astype(np.float64) / 2.0**64  # 24 bits wherever it lies
    tiny = np.abs(rounded) < 2.0**-126
    as_subnormal = np.abs(exact.astype(np.float32)) == np.float32(2.0**-126)
    assert (tiny & as_subnormal).any() and (~tiny & (np.abs(exact) < 2.0**-126)).any()
    assert (out[tiny] == 0).all() and (out[~tiny] != 0).all()


@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_small_matrix_products_are_exact(kind):
    kernel = next(
        k
        for k in micro_kernels.matrix_kernels()
        if k.form == f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 small"
    )
    out = suite.emulate(kernel).view(np.float32)
    words = kernel.inputs[0]

    def numbers(w):
        pair = np.stack([w & 0xFFFF, w >> 16], -1).astype(np.uint16)
        return (
            (pair.astype(np.uint32) << 16).view(np.float32)
            if kind == "bf16"
            else pair.view(np.float16).astype(np.float32)
        )

    a, b, c, d = np.zeros((16, 16)), np.zeros((16, 8)), np.zeros((16, 8)), np.zeros((16, 8))
    for lane in range(32):  # the fragment layout of the PTX manual
        g, t = divmod(lane, 4)
        for i in range(4):
            for p in range(2):
                a[g + 8 * (i % 2), 2 * t + p + 8 * (i // 2)] = numbers(words[lane, i])[p]
        for i in range(2):
            for p in range(2):
                b[2 * t + p + 8 * i, g] = numbers(words[lane, 4 + i])[p]
        for i in range(4):
            c[g + 8 * (i // 2), 2 * t + i % 2] = words[lane, 6 + i : 7 + i].view(np.float32)[0]
            d[g + 8 * (i // 2), 2 * t + i % 2] = out[lane, i]
    assert np.abs(d).max() > 10
    assert np.array_equal(d, a @ b + c)
