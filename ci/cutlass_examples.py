"""Runs matrix products of CUTLASS's examples for Blackwell on the emulated GPU, and writes whether they are exact.

    python ci/cutlass_examples.py FOLDER [--out FILE]

FOLDER is a checkout of github.com/NVIDIA/cutlass (tried: 4.7). Two examples in CuTe DSL are taken from it, unchanged:
block-scaled products (`dense_blockscaled_gemm_persistent.py`), and products of a persistent kernel that takes clusters
out of its grid by clusterlaunchcontrol (`dense_gemm_persistent_dynamic.py`). Their inputs are numbers whose sums are
exact in f32, so every bit of the result is known. Each runs with all default checks and in four schedules.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import torch
from cutlass import cute
from cutlass.cute.nvgpu import OperandMajorMode
from cutlass.cute.runtime import make_fake_stream, make_ptr
from cutlass.tensor_utils import LayoutEnum

sys.path.insert(0, str(Path(__file__).parent.parent))

from fuzz.devices.emulator import Emulator, Report
from kernels.blocksparse.compile.build import _compiling_for as compiling_for

EXAMPLES = Path("examples/python/CuTeDSL/cute/blackwell/kernel")
SCALED = EXAMPLES / "blockscaled_gemm/dense_blockscaled_gemm_persistent.py"
DYNAMIC = EXAMPLES / "dense_gemm/dense_gemm_persistent_dynamic.py"
RESULT = Path(__file__).parent / "results" / "cutlass_examples_host.json"
DUMP = tempfile.mkdtemp()  # the compiler leaves its PTX there
OPTIONS = f"--keep-ptx --dump-dir={DUMP}"
SCHEDULES = ("in_order", "random", "oldest_last", "greedy")
TYPES = {"e4m3": cutlass.Float8E4M3FN, "e5m2": cutlass.Float8E5M2, "e2m1": cutlass.Float4E2M1FN,
         "e8m0": cutlass.Float8E8M0FNU}  # fmt: skip
FLOAT8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
HALVES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])  # e2m1
# types of A, B and the factors, numbers of a block, tile, CTAs of a cluster, m, n, k
SCALED_CASES = (
    ("e4m3", "e4m3", "e8m0", 32, (128, 128), (1, 1), 256, 128, 256),
    ("e5m2", "e5m2", "e8m0", 32, (256, 128), (2, 1), 256, 256, 256),
    ("e2m1", "e4m3", "e8m0", 32, (128, 128), (1, 1), 128, 128, 256),
    ("e2m1", "e2m1", "e8m0", 32, (128, 128), (1, 1), 128, 128, 512),
    ("e2m1", "e2m1", "e4m3", 16, (128, 128), (1, 1), 128, 128, 512),
    ("e2m1", "e2m1", "e4m3", 16, (256, 128), (2, 1), 256, 128, 512),
)
# products of two CTAs, tile, CTAs of a cluster, m, n, k
DYNAMIC_CASES = ((False, (128, 128), (1, 1), 512, 256, 128), (True, (256, 128), (2, 1), 1024, 256, 128))


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pointer(kind: Any, align: int = 32) -> Any:
    return make_ptr(kind, 0, cute.AddressSpace.gmem, assumed_align=align)


def numbers(form: str, rows: int, k: int, g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """(numbers as float64, their bytes: two e2m1 in one)."""
    if form == "e2m1":
        codes = torch.randint(0, 16, (rows, k), generator=g)
        return torch.cat([HALVES, -HALVES]).double()[codes], (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)
    x = (torch.randint(-6, 7, (rows, k), generator=g) * 0.5).to(FLOAT8[form])
    return x.double(), x.view(torch.uint8)


def factors(form: str, rows: int, k: int, g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """(factors as float64, their bytes in the order of the example: 128 rows and 4 factors at a time)."""
    if form == "e4m3":
        x = (torch.randint(1, 5, (rows, k), generator=g) * 0.5).to(FLOAT8[form])
        means, codes = x.double(), x.view(torch.uint8)
    else:
        codes = torch.randint(126, 129, (rows, k), generator=g).to(torch.uint8)
        means = torch.exp2(codes.double() - 127)
    return means, codes.reshape(rows // 128, 4, 32, k // 4, 4).permute(0, 3, 2, 1, 4).contiguous().flatten()


def scaled(example: ModuleType, a_form: str, b_form: str, scale: str, block: int, tile: Any, cluster: Any, m: int,
           n: int, k: int) -> Callable[[Emulator], tuple[Report, bool]]:  # fmt: skip
    """A block-scaled product, ready to run: (report, is it exact)."""
    product = example.Sm100BlockScaledPersistentDenseGemmKernel(block, tile, cluster)
    layouts = (OperandMajorMode.K, OperandMajorMode.K, LayoutEnum.ROW_MAJOR)

    @cute.jit
    def host(a: cute.Pointer, b: cute.Pointer, a_scale: cute.Pointer, b_scale: cute.Pointer, c: cute.Pointer,
             stream: cuda.CUstream):  # fmt: skip
        product(a, b, a_scale, b_scale, c, layouts, (m, n, k, 1), 2, stream)

    kinds = (*(pointer(TYPES[form]) for form in (a_form, b_form, scale, scale)), pointer(cutlass.Float32))
    with compiling_for("sm_100a"):
        compiled = cute.compile(host, *kinds, make_fake_stream(), options=OPTIONS)
    g = torch.Generator().manual_seed(2)
    (x, a), (y, b) = (numbers(form, rows, k, g) for form, rows in ((a_form, m), (b_form, n)))
    (fx, a_scale), (fy, b_scale) = (factors(scale, rows, k // block, g) for rows in (m, n))
    expected = (x * fx.repeat_interleave(block, 1)) @ (y * fy.repeat_interleave(block, 1)).T

    def run(emulator: Emulator) -> tuple[Report, bool]:
        c = torch.full((m, n), float("nan"))
        return emulator.load(compiled)(a, b, a_scale, b_scale, c), torch.equal(c.double(), expected)

    return run


def dynamic(
    example: ModuleType, two: bool, tile: Any, cluster: Any, m: int, n: int, k: int
) -> Callable[[Emulator], tuple[Report, bool]]:
    """A product of f16 by a persistent kernel, ready to run."""
    kernel = next(v for name, v in vars(example).items() if isinstance(v, type) and name.endswith("GemmKernel"))
    product = kernel(cutlass.Float32, two, tile, cluster, True)

    @cute.jit
    def host(a: cute.Pointer, b: cute.Pointer, c: cute.Pointer, stream: cuda.CUstream):
        left = cute.make_tensor(a, cute.make_layout((m, k, 1), stride=(k, 1, m * k)))
        right = cute.make_tensor(b, cute.make_layout((n, k, 1), stride=(k, 1, n * k)))
        product(left, right, cute.make_tensor(c, cute.make_layout((m, n, 1), stride=(n, 1, m * n))), stream)

    kinds = [pointer(kind) for kind in (cutlass.Float16, cutlass.Float16, cutlass.Float32)]
    with compiling_for("sm_100a"):
        compiled = cute.compile(host, *kinds, make_fake_stream(), options=OPTIONS)
    g = torch.Generator().manual_seed(2)
    a, b = (torch.randint(-4, 5, (rows, k), generator=g).half() for rows in (m, n))

    def run(emulator: Emulator) -> tuple[Report, bool]:
        c = torch.full((m, n), float("nan"))
        return emulator.load(compiled)(a, b, c), torch.equal(c, a.float() @ b.float().T)

    return run


def measure(folder: Path) -> list[dict[str, Any]]:
    """A row for each case and schedule: {example, case, schedule, status, exact, findings, seconds}."""
    rows = []
    for path, cases, prepare in ((SCALED, SCALED_CASES, scaled), (DYNAMIC, DYNAMIC_CASES, dynamic)):
        example = load(folder / path)
        for case in cases:
            run = prepare(example, *case)  # type: ignore[arg-type]
            for schedule in SCHEDULES:
                start = time.perf_counter()
                report, exact = run(Emulator(strict=False, resident_ctas=4, warp_schedule=schedule))
                seconds = round(time.perf_counter() - start, 2)
                rows.append({
                    "example": path.name, "case": " ".join(map(str, case)), "schedule": schedule,
                    "status": report.status, "exact": exact, "findings": [str(f) for f in report.findings],
                    "seconds": seconds,
                })  # fmt: skip
                print(*rows[-1].values(), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    rows = measure(options.folder)
    options.out.write_text(json.dumps({"runs": rows}, indent=1) + "\n")
    good = sum(row["exact"] and row["status"] == "finished" and not row["findings"] for row in rows)
    print(f"{good} of {len(rows)} runs are exact and without a finding")


if __name__ == "__main__":
    main()
