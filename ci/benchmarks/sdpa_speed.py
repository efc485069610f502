"""kernels.sdpa on a GPU: checks it natively, then times it against PyTorch's own attention, backend by backend.

    python ci/benchmarks/sdpa_speed.py --out ci/results/sdpa_h200.json      # checks and timings on the GPU that is
    there
    python ci/benchmarks/sdpa_speed.py --smoke --out /tmp/sdpa.json         # small inputs; runs on a CPU in Triton's
    interpreter

Times are medians over CUDA events around each call, after a warm-up, with the L2 cache flushed in between. A backward
time is that of torch.autograd.grad alone. "default" is what PyTorch picks by itself. Exits with 1 if a check fails.
"""

import argparse
import datetime
import json
import math
import multiprocessing
import os
import random
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support" / "kernels"))
sys.path.insert(0, str(Path(__file__).parents[2]))

import triton
from sdpa_cases import complaints, difference, largest, run
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as torch_attention

from kernels.sdpa import plan, prepare, scaled_dot_product_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "default": None,
}


# ---------------------------------------------------------------------------------------------------------- checks


def draw_case(rng: random.Random, longest: int) -> dict:
    """A random call, biased to boundaries: everything that the kernel takes, no more."""
    lengths = [0, 1, 2, 31, 63, 64, 65, 127, 128, 129, 200, 255, 257, 513]
    lengths = [length for length in lengths if length <= longest]
    heads_kv = rng.choice([1, 1, 2, 3])
    dim = rng.choice([1, 8, 16, 20, 32, 40, 64, 64, 80, 96, 128, 128, 192, 256])
    mask = rng.choice(["none", "none", "causal", "causal", "bool", "float"])
    return {
        "dtype": rng.choice(DTYPES),
        "batch": rng.choice([1, 1, 2, 3]),
        "heads_kv": heads_kv,
        "heads_q": heads_kv * rng.choice([1, 1, 2, 4]),
        "len_q": rng.choice(lengths),
        "len_k": rng.choice(lengths),
        "dim": dim,
        "dim_v": rng.choice([dim, dim, dim, 16, 72, 128]),
        "mask": mask,
        "mask_keeps": [rng.random() < 0.6 for _ in range(4)],
        "mask_dtype": rng.choice(["same", "same", "same", *DTYPES]),
        "scale": rng.choice([None, None, None, None, None, 0.3, 0.3, 0.0, -0.2]),
        "layout": rng.choice(["contiguous", "contiguous", "heads inside", "columns apart", "shifted", "expanded"]),
    }


def tensors_of(case: dict, generator: torch.Generator) -> list[torch.Tensor | None]:
    """[query, key, value, mask], all floating ones requiring gradients."""

    def normal(*shape, dtype):
        return torch.randn(shape, generator=generator, device=DEVICE).to(dtype)

    batch, heads_q, heads_kv = case["batch"], case["heads_q"], case["heads_kv"]
    shapes = [
        (batch, heads_q, case["len_q"], case["dim"]),
        (batch, heads_kv, case["len_k"], case["dim"]),
        (batch, heads_kv, case["len_k"], case["dim_v"]),
    ]
    inputs = [lay_out(normal(*shape, dtype=case["dtype"]), case["layout"]) for shape in shapes]
    full = (batch, heads_q, case["len_q"], case["len_k"])
    shape = [size if keep else 1 for size, keep in zip(full, case["mask_keeps"], strict=True)]
    mask = None
    if case["mask"] == "bool":
        mask = normal(*shape, dtype=torch.float32) > -0.3
    elif case["mask"] == "float":
        dtype = case["dtype"] if case["mask_dtype"] == "same" else case["mask_dtype"]
        mask = normal(*shape, dtype=dtype).requires_grad_()
    return [*(x.requires_grad_() for x in inputs), mask]


def lay_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    if layout == "heads inside":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "columns apart":
        return torch.stack((x, x), -1).flatten(-2)[..., ::2]
    if layout == "shifted":
        return torch.cat((x.new_zeros(1), x.flatten()))[1:].view(x.shape)
    if layout == "expanded":
        return x[:1].expand_as(x)
    return x


def check_case(case: dict, generator: torch.Generator) -> list[str]:
    """Complaints about one call, forward and backward, see tests/support/kernels/sdpa_cases.py for what is right."""
    inputs = tensors_of(case, generator)
    options = {"is_causal": case["mask"] == "causal", "scale": case["scale"]}
    got, again = (
        run(scaled_dot_product_attention, inputs, enable_gqa=True, return_lse=True, **options) for _ in range(2)
    )
    found = [f"{name} {complaint}" for name, complaint in complaints(got, inputs, **options).items()]
    return found + [f"{name} differs between two runs" for name in got if not same_bits(got[name], again[name])]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def check_numbered_case(number: int, longest: int) -> dict | None:
    """A case and the complaints about it; None where there are none."""
    case = draw_case(random.Random(number), longest)
    try:
        complaints = check_case(case, torch.Generator(DEVICE).manual_seed(number))
    except Exception as error:
        complaints = [f"{type(error).__name__}: {str(error)[:300]}"]
    return {"case": {k: str(v) for k, v in case.items()}, "complaints": complaints} if complaints else None


def check_random_cases(count: int, longest: int, workers: int) -> dict:
    """Checks cases 0 … count - 1, spread over processes because most of the time goes into compiling."""
    if workers == 1:
        found = [check_numbered_case(number, longest) for number in range(count)]
    else:
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            found = list(pool.map(check_numbered_case, range(count), [longest] * count))
    return {"cases": count, "failures": [failure for failure in found if failure]}


def count_compilations(count: int, longest: int) -> dict:
    """Number of kernels that a number of random calls, forward and backward, would compile."""
    rng, generator = random.Random(1), torch.Generator(DEVICE).manual_seed(1)
    keys, after = set(), {}
    for i in range(count):
        case = draw_case(rng, longest)
        query, key, value, mask = tensors_of(case, generator)
        options = {"is_causal": case["mask"] == "causal", "scale": case["scale"], "enable_gqa": True}
        keys |= {launch.compile_key for launch in plan(query, key, value, mask, **options) if launch.programs}
        if i + 1 in (10, 100, count):
            after[i + 1] = len(keys)
    return {"kernels_after_cases": after}


def check_compiled() -> list[str]:
    """torch.compile gives what eager gives, gradients included."""
    backend = "inductor" if DEVICE == "cuda" else "aot_eager"

    def loss(query, key, value, bias):
        out, lse = scaled_dot_product_attention(query * 2, key, value, bias, enable_gqa=True, return_lse=True)
        return (out.float() ** 2).sum() + lse.sum()

    inputs = [
        torch.randn(shape, device=DEVICE, requires_grad=True)
        for shape in [(2, 4, 100, 64), (2, 2, 130, 64), (2, 2, 130, 64), (100, 1)]
    ]
    eager, compiled = loss(*inputs), torch.compile(loss, fullgraph=True, backend=backend)(*inputs)
    pairs = [(compiled, eager)]
    pairs += zip(torch.autograd.grad(compiled, inputs), torch.autograd.grad(eager, inputs), strict=True)
    return [f"result {i} differs" for i, (a, b) in enumerate(pairs) if difference(a, b) > 1e-5 * largest(b)]


# --------------------------------------------------------------------------------------------------------- timings


def time_of(call, repeats: int, flush: torch.Tensor | None) -> float:
    """Median milliseconds of one call."""
    if DEVICE == "cpu":
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e3
    for _ in range(5):
        call()
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for start, end in marks:
        flush.zero_()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in marks)


def time_both(attention, inputs, grad_out, repeats, flush) -> tuple[float, float]:
    """(forward, backward) milliseconds; NaN where the backend refuses the call, which is printed."""
    try:
        out = attention(*inputs)
        forward = time_of(lambda: attention(*inputs), repeats, flush)
        backward = time_of(lambda: torch.autograd.grad(out, inputs, grad_out, retain_graph=True), repeats, flush)
    except RuntimeError as error:
        print(f"not timed: {type(error).__name__}: {str(error).strip().splitlines()[0]}", file=sys.stderr)
        return math.nan, math.nan
    return forward, backward


def time_setting(batch, heads, length, dim, is_causal, repeats, flush) -> dict:
    shape = (batch, heads, length, dim)
    inputs = [torch.randn(shape, device=DEVICE, dtype=torch.bfloat16).requires_grad_() for _ in range(3)]
    grad_out = torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)
    prepare(*inputs, is_causal=is_causal)
    times = {
        "ours": time_both(
            lambda *x: scaled_dot_product_attention(*x, is_causal=is_causal), inputs, grad_out, repeats, flush
        )
    }
    for name, backend in BACKENDS.items():
        with nullcontext() if backend is None else sdpa_kernel(backend):
            times[name] = time_both(
                lambda *x: torch_attention(*x, is_causal=is_causal), inputs, grad_out, repeats, flush
            )
    operations = 4 * batch * heads * length * length * dim / (2 if is_causal else 1)
    return {
        "batch": batch,
        "heads": heads,
        "tokens": length,
        "dim": dim,
        "is_causal": is_causal,
        "dtype": "bfloat16",
        "forward_ms": {name: pair[0] for name, pair in times.items()},
        "backward_ms": {name: pair[1] for name, pair in times.items()},
        "ours_forward_tflops": operations / times["ours"][0] / 1e9,
        "ours_backward_tflops": 2.5 * operations / times["ours"][1] / 1e9,
    }


def print_table(settings: list[dict]) -> None:
    """Ours in milliseconds, and how many times as long each backend of PyTorch takes."""
    print(f"{'':26}{'ours ms':>9}{'TFLOP/s':>9}" + "".join(f"{name:>11}" for name in BACKENDS) + "   (times ours)")
    for setting in settings:
        for direction in ("forward", "backward"):
            times = setting[f"{direction}_ms"]
            label = f"dim {setting['dim']}{' causal' if setting['is_causal'] else ''} {direction}"
            ratios = "".join(f"{times[name] / times['ours']:>11.2f}" for name in BACKENDS)
            print(f"{label:26}{times['ours']:>9.3f}{setting[f'ours_{direction}_tflops']:>9.0f}{ratios}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="path of the JSON report")
    parser.add_argument("--smoke", action="store_true", help="few and small inputs")
    parser.add_argument("--cases", type=int, help="random cases to check")
    workers = 12 if DEVICE == "cuda" else 1
    parser.add_argument("--workers", type=int, default=workers, help="processes that check random cases")
    arguments = parser.parse_args()
    smoke = arguments.smoke
    cases = arguments.cases if arguments.cases is not None else (6 if smoke else 300)

    checks = {
        "random": check_random_cases(cases, 65 if smoke else 600, arguments.workers),
        "compiled": check_compiled(),
        "compilations": count_compilations(50 if smoke else 1000, 600),
    }
    for failure in checks["random"]["failures"]:
        print(failure)
    print({name: value for name, value in checks.items() if name != "random"})
    good = not checks["random"]["failures"] and not checks["compiled"]
    print(f"checks: {'pass' if good else 'FAIL'}, {len(checks['random']['failures'])} of {cases} random cases wrong")

    flush = torch.empty(2**26, dtype=torch.int32, device=DEVICE) if DEVICE == "cuda" else None
    length, repeats = (64, 1) if smoke else (8192, 30)
    settings = [
        time_setting(2, 1 if smoke else 16, length, dim, is_causal, repeats, flush)
        for dim in (64, 128)
        for is_causal in (False, True)
    ]
    print_table(settings)
    report = {
        "device": torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu, Triton's interpreter",
        "versions": {"python": sys.version.split()[0], "torch": torch.__version__, "triton": triton.__version__},
        "command": f"python ci/benchmarks/sdpa_speed.py --cases {cases}" + (" --smoke" if smoke else ""),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "times": "median milliseconds over CUDA events, L2 flushed before each call",
        "checks": {**checks, "passed": good},
        "settings": settings,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
