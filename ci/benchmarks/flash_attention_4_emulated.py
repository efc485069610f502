"""Seconds of FlashAttention-4's forward pass on the emulated GPU, with the checks on; writes
ci/results/flash_attention_4_emulated_speed_host.json.

    python ci/benchmarks/flash_attention_4_emulated.py [--arch sm_90a] [--out FILE]      with flash-attn-4 ('.[fa4]')

4,096 tokens, 8 heads, head dim 128, causal, bfloat16; the kernel is compiled, and run once at 256 tokens, before. The
output is compared with PyTorch's in float32.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from fuzz.devices.emulator import ready
from fuzz.devices.emulator.config import BLOCK_CHECKS, LaunchConfig
from fuzz.devices.emulator.frontends.cute_functions import Device
from fuzz.targets.flash_attention_4.emulated import taking_cpu_tensors

ROOT = Path(__file__).parents[2]
OUT = ROOT / "ci" / "results" / "flash_attention_4_emulated_speed_host.json"
PACKAGES = ("flash-attn-4", "quack-kernels", "nvidia-cutlass-dsl", "torch", "numba")
CHECKS = BLOCK_CHECKS - {"copies_at_exit"}  # which its kernels fail, see docs/how_to/flash_attention_4.md
HEADS, DIM = 8, 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="sm_90a", choices=["sm_90a", "sm_100a"])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ["ATTNFUZZ_ARCH"] = options.arch
    torch.set_num_threads(1)
    ready()
    forward(options.arch, 256)
    result = {
        "what": f"FlashAttention-4's forward pass on the emulated GPU: {HEADS} heads, head dim {DIM}, causal, bfloat16",
        "command": f"python ci/benchmarks/flash_attention_4_emulated.py --arch {options.arch}",
        "machine": {"cpus": os.cpu_count(), "machine": platform.machine(), "load": round(os.getloadavg()[0], 2)},
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "checks": sorted(CHECKS),
        **forward(options.arch, options.tokens),
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def forward(arch: str, tokens: int) -> dict[str, Any]:
    """Seconds by the clock and of the processor of one forward pass, and how far its output is from PyTorch's."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, tokens, HEADS, DIM, dtype=torch.bfloat16) for _ in range(3))
    reports: list[Any] = []
    gpu = Device(LaunchConfig(checks=CHECKS, dispatch="in_order"), reports.append, None, None)
    with taking_cpu_tensors(arch, gpu):
        from flash_attn.cute import flash_attn_func

        start, busy = time.perf_counter(), time.process_time()
        out = flash_attn_func(q, k, v, causal=True)[0]
        seconds, busy = time.perf_counter() - start, time.process_time() - busy
    want = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2).float() for x in (q, k, v)), is_causal=True
    ).transpose(1, 2)
    return {
        "tokens": tokens,
        "seconds": round(seconds, 1),
        "processor_seconds": round(busy, 1),
        "micro_operations": sum(report.executed for report in reports),
        "findings": sum(len(report.findings) for report in reports),
        "largest_error": round((out.float() - want).abs().max().item(), 5),
    }


if __name__ == "__main__":
    main()
