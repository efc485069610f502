"""Micro-kernels of bulk copies and mbarriers on the emulator, and tensor maps against a driver's."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fuzz.devices.emulator.conformance import agreement, map_agreement, suite
from fuzz.devices.emulator.conformance.bulk.reductions import TYPES, reduce_tensor, special, usual
from fuzz.devices.emulator.conformance.bulk.stores import GUARD
from fuzz.devices.emulator.conformance.bulk.suite import bulk_kernels
from fuzz.devices.emulator.conformance.mbarriers import mbarrier_kernels
from fuzz.devices.emulator.conformance.tensor_maps import USUAL, described, tensor_maps
from fuzz.devices.emulator.decode.decoder import Unimplemented
from fuzz.devices.emulator.report.report import EmulationError
from fuzz.devices.emulator.tensor_map import BF16, F16, F32, F64, S32, S64, U32, U64

RESULTS = Path(__file__).parents[5] / "ci" / "results"
HOPPER = RESULTS / "ptx_sm_90.json"
# the finding for each error of the GPU
REFUSED = {
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": ("or an H200 raises an illegal instruction", "does not combine; an H200 raises"),
    "CUDA_ERROR_ILLEGAL_ADDRESS": ("of shared memory, of which the CTA has",),
}
NUMPY = {
    U32: np.uint32,
    S32: np.int32,
    U64: np.uint64,
    S64: np.int64,
    F16: np.float16,
    F32: np.float32,
    F64: np.float64,
}


def findings(kernel):
    """The emulator's words where it refuses a kernel, else ""."""
    try:
        suite.emulate(kernel)
    except (EmulationError, Unimplemented) as error:
        return str(error)
    return ""


def test_a_micro_kernel_has_a_finding_where_the_gpu_refuses_it_and_only_there():
    recorded = json.loads(HOPPER.read_text())["forms"]
    wrong, raised = {}, Counter()
    for kernel in [*bulk_kernels(), *mbarrier_kernels()]:
        answer = recorded.get(kernel.form)
        if answer is None:
            continue
        said = findings(kernel)
        words = REFUSED.get(agreement.error(answer), ()) if isinstance(answer, dict) else (kernel.refuses,)
        raised[agreement.error(answer) if isinstance(answer, dict) else ""] += 1
        if bool(said) != any(words) or not any(word in said for word in words):
            wrong[kernel.form] = said or f"no finding: {answer}"
    assert not wrong
    assert raised["CUDA_ERROR_ILLEGAL_INSTRUCTION"] > 200 and raised["CUDA_ERROR_ILLEGAL_ADDRESS"] > 5


def test_micro_kernels_without_an_answer_are_implemented():
    recorded = json.loads(HOPPER.read_text())["forms"]
    for kernel in bulk_kernels():
        if kernel.form not in recorded:
            said = findings(kernel)
            assert "is not emulated" not in said or "tf32 or flushed (ftz)" in said


def test_the_set_has_every_type_swizzle_and_edge():
    forms = [k.form for k in bulk_kernels()]
    loads = [f for f in forms if f.startswith("cp.async.bulk.tensor") and "shared::cluster.global" in f]
    for words in ("u8", "u16", "s64", "f16", "f64", "bf16", "tf32", "32B", "64B", "128B", "nan", "steps"):
        assert any(f" {words} " in f for f in loads), words
    for rank in range(1, 6):
        edges = Counter(f.split("dimension ")[1] for f in loads if f".{rank}d." in f and "dimension " in f)
        assert len(edges) == 4 * rank and set(edges.values()) == {1}
    reductions = Counter(f.split("shared::cta.")[1].split(".")[0] for f in forms if ".reduce." in f and "tensor" in f)
    assert set(TYPES) <= set(reductions)


def combined(operation, element, image, before):
    """A reduction of whole numbers, or of floats by min and max, in numpy."""
    x, old = (v.view(NUMPY[element]) for v in (image, before))
    with np.errstate(over="ignore"):
        return {
            "add": lambda: old + x,
            "min": lambda: np.minimum(old, x),
            "max": lambda: np.maximum(old, x),
            "and": lambda: old & x,
            "or": lambda: old | x,
            "xor": lambda: old ^ x,
            "inc": lambda: np.where(old >= x, 0, old + 1).astype(x.dtype),
            "dec": lambda: np.where((old == 0) | (old > x), x, old - 1).astype(x.dtype),
        }[operation]()


@pytest.mark.parametrize(
    ("operation", "element"), [(o, e) for o, elements in TYPES.items() for e in elements if e != BF16]
)
def test_reductions_agree_with_numpy(operation, element):
    image, before = usual(element, operation), usual(element, "before")
    out = suite.emulate(reduce_tensor(operation, element, "", image, before)).reshape(-1)
    got = out[GUARD // 4 :][: len(before)].view(NUMPY[element])
    assert np.array_equal(got, combined(operation, element, image, before))
    assert (out[: GUARD // 4] == 0xDDDDDDDD).all() and (out[GUARD // 4 + len(before) :] == 0xDDDDDDDD).all()


def test_the_least_of_a_number_and_a_nan_is_the_number():
    image, before = special(F16)
    out = suite.emulate(reduce_tensor("min", F16, "", image, before)).reshape(-1)
    got = out[GUARD // 4 :][: len(before)].view(np.float16)
    x, old = image.view(np.float16), before.view(np.float16)
    assert np.array_equal(got, np.fmin(x, old), equal_nan=True)
    zeros = (x == 0) & (old == 0)
    assert np.array_equal(np.signbit(got[zeros]), (np.signbit(x) | np.signbit(old))[zeros])


def test_a_drivers_maps_are_compared_with_ours():
    odd = {described(m): m for m in tensor_maps([]).values()}
    bad_row = next(name for name, m in odd.items() if m.box == (3, 8, 4))
    same = USUAL.encode().rstrip(b"\0").hex()
    other = next(name for name, m in odd.items() if m.strides == (48, 12288))
    refused = {"refused": "cuTensorMapEncodeTiled: CUDA_ERROR_INVALID_VALUE"}
    found = map_agreement.measure({described(USUAL): same, bad_row: refused, other: refused, "gone": same}, [])
    assert (found["alike"], found["refused"], set(found["differ"])) == (1, 1, {other})
    assert found["differ"][other]["driver"] == refused
    found = map_agreement.measure({described(USUAL): same.replace("f", "e"), bad_row: same}, [])
    assert (found["alike"], set(found["differ"])) == (0, {described(USUAL), bad_row})


def test_our_maps_have_the_bits_of_a_drivers():
    recorded = json.loads(HOPPER.read_text())["tensor_maps"]
    stated = json.loads((RESULTS / "ptx_agreement.json").read_text())[HOPPER.stem]["tensor_maps"]
    assert map_agreement.measure(recorded, suite.all_kernels()) == stated
    assert not stated["differ"] and stated["alike"] > 300
