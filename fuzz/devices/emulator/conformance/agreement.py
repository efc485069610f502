"""Distance between the emulator and a GPU on the micro-kernels (ci/emulator_vs_gpu.py records the GPU's answers).

Exact forms must agree bit for bit over all their threads (by fingerprint). For the approximate ones, and for sums of
random products in matrix instructions, the distance is measured on the threads whose answers were kept.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.devices.emulator.conformance import map_agreement, suite
from fuzz.devices.emulator.conformance.kernel import MicroKernel
from fuzz.devices.emulator.decode.decoder import Unimplemented
from fuzz.devices.emulator.report.report import EmulationError

TURN = np.pi  # sin and cos are held to the argument range that PTX states an error for


def sums_in_f16(form: str) -> bool:
    """True for a matrix product whose sums are f16."""
    return form.startswith(("mma", "wgmma")) and ".f16.f16.f16" in form


def numbers(form: str, answer: np.ndarray) -> np.ndarray:
    """An approximate form's answer (uint32 words) as float64."""
    kind = np.float16 if sums_in_f16(form) else np.float32
    return answer.view(kind).astype(np.float64)


def distance(kernel: MicroKernel, ours: np.ndarray, theirs: np.ndarray) -> dict[str, float | int]:
    """Largest relative and absolute distance over the finite results, and how many answers differ at all.

    special  results where one side is a NaN or an infinity and the other is not the same
    relative is over results that are not tiny: below 2**-100 only the absolute distance counts; for lg2 (whose error
             PTX states in absolute terms between 0.5 and 2) and for sums, it counts where the result is at least 1/2
    """
    name = kernel.form.split(".")[0]
    x, y = numbers(kernel.form, ours), numbers(kernel.form, theirs)
    if name in ("sin", "cos"):
        given = np.abs(kernel.inputs[0].view(np.float32)[: len(x)]) <= TURN
        x, y = x[given], y[given]
    finite = np.isfinite(x) & np.isfinite(y)
    same = (np.isnan(x) & np.isnan(y)) | (x == y)
    gap = np.abs(np.where(finite, x, 0) - np.where(finite, y, 0))
    least = 0.5 if name in ("lg2", "mma", "wgmma", "sin", "cos") else 2.0**-100
    large = finite & (np.abs(y) >= least)
    relative = np.where(large, gap / np.where(large, np.abs(y), 1), 0)
    small = np.where(finite & ~large, gap, 0)
    return {
        "answers": int(x.size), "differ": int((x != y)[~np.isnan(x) | ~np.isnan(y)].sum()),
        "special": int((~finite & ~same).sum()), "relative": float(relative.max(initial=0)),
        "absolute": float(small.max(initial=0)),
    }  # fmt: skip


def example(kernel: MicroKernel, ours: np.ndarray, theirs: np.ndarray) -> str:
    """The first thread, of those kept, whose answer differs."""
    rows = np.argwhere((ours[: len(theirs)] != theirs).any(1))[:, 0]
    if not len(rows):
        return "beyond the threads that were kept"
    i = int(rows[0])
    given = [f"{int(x[i].reshape(-1)[0]):#x}" for x in kernel.inputs if len(x) == kernel.threads]
    return (f"{len(rows)} of {len(theirs)}: {given or f'thread {i}'} gives {[hex(v) for v in theirs[i]]}, "
            f"emulated {[hex(v) for v in ours[i]]}")  # fmt: skip


def error(answer: Any) -> str:
    """The error that the kernel raised on the GPU: "CUDA_ERROR_ILLEGAL_INSTRUCTION"; "" where it raised none."""
    found = re.search(r"cuCtxSynchronize: (CUDA_ERROR_ILLEGAL_\w+)", answer.get("refused", "")) if answer else None
    return found[1] if found else ""


def finding(kernel: MicroKernel) -> str:
    """The first kind of finding that the emulator has of a kernel; "" where it has none."""
    try:
        suite.emulate(kernel)
    except EmulationError as refusal:
        return refusal.report.findings[0].kind if refusal.report.findings else str(refusal)
    return ""


def measure(path: Path) -> dict[str, Any]:
    """Runs every micro-kernel that has an answer in `path` (.npz, its .json beside it).

    Returns {gpu, bitwise: how many forms, raised: {the GPU's error: {the emulator's finding: how many forms}},
    approximate: {form: `distance`}, differ: {form: `example`}, without_answer, not_emulated: {why: [forms]},
    tensor_maps: `map_agreement.measure`}.
    """
    about = json.loads(path.with_suffix(".json").read_text())
    recorded, kernels = about["forms"], list(suite.all_kernels())
    result: dict[str, Any] = {
        "gpu": about["gpu"], "bitwise": 0, "raised": {}, "without_answer": 0, "without": {}, "not_emulated": {},
        "approximate": {}, "differ": {}, "tensor_maps": map_agreement.measure(about.get("tensor_maps", {}), kernels),
    }  # fmt: skip
    with np.load(path.with_suffix(".npz")) as kept:
        for kernel in kernels:
            answer = recorded.get(kernel.form)
            if not isinstance(answer, str) and error(answer):
                raised, kind = error(answer), finding(kernel)
                if kind:
                    kinds = result["raised"].setdefault(raised, {})
                    kinds[kind] = kinds.get(kind, 0) + 1
                else:
                    result["differ"][kernel.form] = f"the GPU raises {raised}, the emulator finds nothing"
                continue
            if not isinstance(answer, str):
                result["without_answer"] += 1
                why = next(iter(answer.items())) if answer else ("not asked", "yet")
                result["without"].setdefault(" ".join(why)[:200], []).append(kernel.form)
                continue
            if kernel.refuses:
                result["not_emulated"].setdefault(kernel.refuses, []).append(kernel.form)
                continue
            try:
                ours = suite.emulate(kernel)
            except (EmulationError, Unimplemented) as refusal:
                result["differ"][kernel.form] = f"the emulator refuses it: {refusal}"
                continue
            theirs = kept[kernel.form]
            if suite.digest(ours) == answer:
                result["bitwise"] += 1
            elif kernel.exact:
                result["differ"][kernel.form] = example(kernel, ours, theirs)
            else:
                result["approximate"][kernel.form] = distance(kernel, ours[: len(theirs)], theirs)
    return result
