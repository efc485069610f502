"""Runs the emulator's micro-kernels on a GPU and writes what it answers to ci/results/ptx_<arch>.npz and .json.

    python ci/emulator_vs_gpu.py             on a machine with an NVIDIA GPU and its driver; needs numpy and llvmlite
    python ci/emulator_vs_gpu.py --missing   only the forms that have no answer yet, or whose kernel has changed since;
                                             their answers join the others, and forms that are gone leave
    python ci/emulator_vs_gpu.py --agreement [FILE]  without a GPU: runs the emulator on the kernels that have answers
                                             and writes where and how far they differ (ci/results/ptx_agreement.json)

The driver compiles the PTX itself, so no toolkit is needed. A form that asks for a newer GPU is written down as such,
one that the driver refuses with its message. tests/fuzz/devices/emulator/conformance/test_micro_kernels.py holds the
emulator to the committed results. Answers are written as they come, so that a run that is cut short keeps what it has.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from fuzz.devices.emulator.conformance import agreement, suite
from fuzz.devices.emulator.conformance.kernel import THREADS, MicroKernel

RESULTS = Path(__file__).parent / "results"
KEPT = 256  # threads of an exact form whose answers are kept word for word; the rest is in the fingerprint
FEW = 8  # the same where a thread's answer has many words: the accumulators of a warpgroup's product
LOST = ("ILLEGAL", "LAUNCH", "MISALIGNED")  # errors after which the context answers nothing any more


class Gpu:
    """The first GPU, through the driver's C interface."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        name = ctypes.create_string_buffer(100)
        self.call("cuDeviceGetName", name, 100, device)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(major), 75, device)
        self.call("cuDeviceGetAttribute", ctypes.byref(minor), 76, device)
        self.name, self.arch = name.value.decode(), f"sm_{major.value}{minor.value}"
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *args: object) -> None:
        code = getattr(self.cuda, name)(*args)
        if code:
            text = ctypes.c_char_p()
            self.cuda.cuGetErrorName(code, ctypes.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'?').decode()}")

    def memory(self, size: int) -> ctypes.c_uint64:
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(max(size, 16)))
        return at

    def run(self, kernel: MicroKernel) -> np.ndarray:
        """The kernel's answer: uint32 (threads, words). Raises RuntimeError with the driver's message."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        log = ctypes.create_string_buffer(2000)
        options = (ctypes.c_int * 2)(5, 6)  # where errors are written, how much fits
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), 2000)
        try:
            self.call("cuModuleLoadDataEx", ctypes.byref(module), kernel.text.encode() + b"\0", 2, options, values)
        except RuntimeError as error:
            raise RuntimeError(f"{error}: {log.value.decode(errors='replace').strip()[:300]}") from None
        self.call("cuModuleGetFunction", ctypes.byref(function), module, b"k")
        out = np.zeros((kernel.threads, kernel.words), dtype=np.uint32)
        places = []
        for x in [*kernel.inputs, out]:
            places.append(self.memory(x.nbytes))
            given = np.ascontiguousarray(x)
            self.call("cuMemcpyHtoD_v2", places[-1], given.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(x.nbytes))
        args = (ctypes.c_void_p * len(places))(*[ctypes.addressof(p) for p in places])
        block = min(kernel.threads, THREADS)
        self.call("cuLaunchKernel", function, kernel.threads // block, 1, 1, block, 1, 1, 0, None, args, None)
        self.call("cuCtxSynchronize")
        self.call("cuMemcpyDtoH_v2", out.ctypes.data_as(ctypes.c_void_p), places[-1], ctypes.c_size_t(out.nbytes))
        for p in places:
            self.call("cuMemFree_v2", p)
        self.call("cuModuleUnload", module)
        return out


def fingerprint(kernel: MicroKernel) -> str:
    """Fingerprint of the kernel's text and inputs: an answer counts only for the kernel that gave it."""
    return f"{zlib.crc32(b''.join([kernel.text.encode(), *(x.tobytes() for x in kernel.inputs)])):08x}"


def too_new(kernel: MicroKernel, arch: str) -> str | None:
    """The architecture that the kernel asks for, if it is beyond `arch`."""
    target = re.search(r"^\.target (sm_(\d+))", kernel.text, re.MULTILINE)
    assert target
    return target.group(1) if int(target.group(2)) > int(arch.removeprefix("sm_")) else None


def before(path: Path) -> tuple[list[str], dict[str, Any], dict[str, np.ndarray], dict[str, str]]:
    """The answers on file: of which GPUs, by form, word for word, and of which kernels."""
    if not path.with_suffix(".json").exists():
        return [], {}, {}, {}
    about = json.loads(path.with_suffix(".json").read_text())
    with np.load(path.with_suffix(".npz")) as kept:
        return about["gpu"].split(", "), about["forms"], dict(kept), about.get("kernels", {})


def write(path: Path, about: dict[str, Any], kept: dict[str, np.ndarray]) -> None:
    np.savez_compressed(path.with_suffix(".npz"), **kept)  # type: ignore[arg-type]
    path.with_suffix(".json").write_text(json.dumps(about, indent=0, sort_keys=True) + "\n")


def record(gpu: Gpu, path: Path, missing: bool) -> None:
    """Asks the GPU and writes its answers; with `missing` only for what has none."""
    start = time.time()
    gpus, forms, kept, kernels = before(path) if missing else ([], {}, {}, {})
    current = {k.form: k for k in suite.all_kernels()}
    forms, kept = ({f: v for f, v in d.items() if f in current} for d in (forms, kept))  # type: ignore[assignment]
    kernels = {f: v for f, v in kernels.items() if f in current}
    about: dict[str, Any] = {
        "gpu": ", ".join(dict.fromkeys([*gpus, gpu.name])), "arch": gpu.arch, "forms": forms, "kernels": kernels,
        "command": "python ci/emulator_vs_gpu.py" + " --missing" * missing,
    }  # fmt: skip
    queried, last = 0, time.time()
    for form, kernel in current.items():
        same = kernels.get(form, fingerprint(kernel)) == fingerprint(kernel)
        if isinstance(forms.get(form), str) and same and (kernel.exact or len(kept[form]) == kernel.threads):
            kernels[form] = fingerprint(kernel)
            continue
        kept.pop(form, None)
        needs = too_new(kernel, gpu.arch)
        if needs:
            forms[form] = {"needs": needs}
            continue
        queried += 1
        kernels[form] = fingerprint(kernel)
        try:
            answer = gpu.run(kernel)
        except RuntimeError as error:
            forms[form] = {"refused": str(error)}
            if any(word in str(error) for word in LOST):
                write(path, about, kept)
                raise
            continue
        forms[form] = suite.digest(answer)
        kept[form] = answer[: KEPT if kernel.words <= 16 else FEW] if kernel.exact else answer
        if time.time() - last > 5:
            write(path, about, kept)
            last = time.time()
    about["seconds"] = round(time.time() - start, 1)
    write(path, about, kept)
    refused = sorted(f for f, v in forms.items() if isinstance(v, dict) and "refused" in v)
    newer = sum(isinstance(v, dict) and "needs" in v for v in forms.values())
    print(f"{gpu.name}: {len(forms)} forms, {queried} queried now, {newer} need a newer GPU, {len(refused)} refused")
    for form in refused:
        print(f"  {form}: {forms[form]['refused']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--missing", action="store_true")
    parser.add_argument("--agreement", nargs="?", type=Path, const=RESULTS / "ptx_agreement.json")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.agreement:
        result = {path.stem: agreement.measure(path) for path in sorted(options.out.glob("ptx_sm_*.npz"))}
        options.agreement.write_text(json.dumps(result, indent=1) + "\n")
        for arch, found in result.items():
            print(f"{arch}: {found['bitwise']} forms bit for bit, {len(found['approximate'])} approximate, "
                  f"{len(found['differ'])} differ, {found['without_answer']} without an answer")  # fmt: skip
            for form, example in found["differ"].items():
                print(f"  {form}: {example}")
        return
    gpu = Gpu()
    options.out.mkdir(parents=True, exist_ok=True)
    record(gpu, options.out / f"ptx_{gpu.arch}", options.missing)


if __name__ == "__main__":
    main()
