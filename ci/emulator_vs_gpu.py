"""Runs the emulator's micro-kernels on a GPU and writes what it answers to ci/results/ptx_<arch>.npz and .json.

    python ci/emulator_vs_gpu.py             on a machine with an NVIDIA GPU and its driver; needs numpy and llvmlite
    python ci/emulator_vs_gpu.py --missing   only the forms that have no answer yet, or whose kernel has changed since;
                                             their answers join the others, and forms that are gone leave
    python ci/emulator_vs_gpu.py --agreement [FILE]  without a GPU: runs the emulator on the kernels that have answers
                                             and writes where and how far they differ (ci/results/ptx_agreement.json)

The driver compiles the PTX itself, so no toolkit is needed. A form that asks for a newer GPU is written down as such,
one that the driver refuses with its message, one that does not end within ten seconds as a hang. The .json also has the
bytes of every tensor map as the driver encodes it, or that it refuses. tests/fuzz/devices/emulator/conformance/ holds
the emulator to the committed results. Answers are written as they come, so that a run that is cut short keeps what it
has.
"""

from __future__ import annotations

import argparse
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
from fuzz.devices.emulator.conformance.gpu_process import GpuProcess
from fuzz.devices.emulator.conformance.kernel import MicroKernel
from fuzz.devices.emulator.conformance.tensor_maps import tensor_maps

RESULTS = Path(__file__).parent / "results"
KEPT = 256  # threads of an exact form whose answers are kept word for word; the rest is in the fingerprint
FEW = 8  # the same where a thread's answer has more than
FEW_WORDS = 16  # words: the accumulators of a warpgroup's product


def fingerprint(kernel: MicroKernel) -> str:
    """Fingerprint of the kernel's text, inputs and maps: an answer counts only for the kernel that gave it."""
    given = [kernel.text.encode(), *(x.tobytes() for x in kernel.inputs), *(repr(m).encode() for m in kernel.maps)]
    return f"{zlib.crc32(b''.join(given)):08x}"


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


def record(gpu: GpuProcess, path: Path, missing: bool) -> None:
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
    if int(gpu.arch.removeprefix("sm_")) >= 90:
        about["tensor_maps"] = encoded(gpu, list(current.values()))
    queried, last = 0, time.time()
    for form, kernel in current.items():
        same = kernels.get(form, fingerprint(kernel)) == fingerprint(kernel)
        if isinstance(forms.get(form), str) and same and (kernel.exact or len(kept[form]) == kernel.threads):
            kernels[form] = fingerprint(kernel)
            continue
        if isinstance(forms.get(form), dict) and "refused" in forms[form] and kernels.get(form) == fingerprint(kernel):
            continue
        kept.pop(form, None)
        needs = too_new(kernel, gpu.arch)
        if needs:
            forms[form] = {"needs": needs}
            continue
        queried += 1
        kernels[form] = fingerprint(kernel)
        try:
            answer = gpu.ask("run", kernel)
        except RuntimeError as error:
            forms[form] = {"refused": str(error)}
            continue
        forms[form] = suite.digest(answer)
        kept[form] = answer[: KEPT if kernel.words <= FEW_WORDS else FEW] if kernel.exact else answer
        if time.time() - last > 5:
            write(path, about, kept)
            last = time.time()
    about["seconds"] = round(time.time() - start, 1)
    write(path, about, kept)
    refused = sorted(f for f, v in forms.items() if isinstance(v, dict) and "refused" in v)
    newer = sum(isinstance(v, dict) and "needs" in v for v in forms.values())
    print(f"{gpu.name}: {len(forms)} forms, {queried} queried now, {newer} need a newer GPU, {len(refused)} refused, "
          f"{len(about.get('tensor_maps', {}))} tensor maps, {gpu.begun} processes, {about['seconds']} s")  # fmt: skip
    for form in refused:
        print(f"  {form}: {forms[form]['refused']}")


def encoded(gpu: GpuProcess, kernels: list[MicroKernel]) -> dict[str, Any]:
    """Bytes of each tensor map as the driver encodes it, hexadecimal without zeros at the end, or {"refused": why}."""
    result: dict[str, Any] = {}
    for name, m in tensor_maps(kernels).items():
        try:
            result[name] = gpu.ask("encode", m).rstrip(b"\0").hex()
        except RuntimeError as error:
            result[name] = {"refused": str(error)}
    return result


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
            raised = sum(sum(kinds.values()) for kinds in found["raised"].values())
            print(f"{arch}: {found['bitwise']} forms bit for bit, {len(found['approximate'])} approximate, {raised} "
                  f"that the GPU refuses and the emulator finds, {len(found['differ'])} differ, "
                  f"{found['without_answer']} without an answer")  # fmt: skip
            for form, example in found["differ"].items():
                print(f"  {form}: {example}")
            maps = found["tensor_maps"]
            print(f"  tensor maps: {maps['alike']} alike, {maps['refused']} that both refuse, "
                  f"{len(maps['differ'])} differ")  # fmt: skip
            for name, example in maps["differ"].items():
                print(f"  {name}: {example}")
        return
    options.out.mkdir(parents=True, exist_ok=True)
    gpu = GpuProcess()
    try:
        record(gpu, options.out / f"ptx_{gpu.arch}", options.missing)
    finally:
        gpu.close()


if __name__ == "__main__":
    main()
