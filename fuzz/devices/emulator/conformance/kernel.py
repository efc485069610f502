"""A micro-kernel: a small PTX text with its inputs, which runs the same here and on a GPU.

A kernel gets the addresses of its inputs (arrays of equal length, one element per thread) and of its output, and a
thread writes `words` 32-bit words. ci/emulator_vs_gpu.py records what a GPU answers; the tests hold the emulator to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

THREADS = 128  # of a CTA


@dataclass(frozen=True)
class MicroKernel:
    """form: what it covers; version and target: what its PTX asks for; inputs: arrays of `threads` rows."""

    form: str
    text: str
    inputs: tuple[np.ndarray, ...]
    threads: int
    words: int
    exact: bool = True


def entry(body: str, inputs: int, registers: str, target: str = "sm_80", version: str = "8.0", shared: int = 0,
          align: int = 128) -> str:  # fmt: skip
    """A kernel named k: pointers to inputs and output in %in0 … and %out, its thread and index, and `body`."""
    pointers = ", ".join([*(f".param .u64 in{i}" for i in range(inputs)), ".param .u64 out"])
    loads = "".join(f"ld.param.u64 %in{i}, [in{i}];\n" for i in range(inputs))
    block = f".shared .align {align} .b8 s[{shared}];\n" if shared else ""
    return f""".version {version}
.target {target}
.address_size 64
.visible .entry k({pointers})
{{
.reg .b32 %thread, %block, %index, %sa;
.reg .b64 %in<{max(inputs, 1)}>;
.reg .b64 %out, %at;
{registers}
{block}{loads}ld.param.u64 %out, [out];
mov.u32 %thread, %tid.x;
mov.u32 %block, %ctaid.x;
mad.lo.s32 %index, %block, {THREADS}, %thread;
{body}
ret;
}}
"""
