"""Compiles a Triton kernel for the emulated GPU into Triton's cache, with and without keys of hooks; prints the sizes
of the codes that it left there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
import triton
import triton.language as tl

from fuzz.devices.emulator.frontends import triton_driver
from fuzz.devices.emulator.frontends.emulated import emulated


@triton.jit
def copy_kernel(mX, mO, N: tl.constexpr):
    place = tl.arange(0, N)
    tl.store(mO + place, tl.load(mX + place))


def sizes(numbers: int, *, keyed: bool) -> list[int]:
    triton_driver.hooks_have_keys = lambda: keyed
    known = set(Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin"))
    x, o = torch.arange(float(numbers)), torch.zeros(numbers)
    with emulated("sm_90a"):
        copy_kernel[(1,)](x, o, numbers)
    assert torch.equal(x, o)
    return [path.stat().st_size for path in Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin") if path not in known]


print(json.dumps({"with keys": sizes(32, keyed=True), "without": sizes(64, keyed=False)}))
