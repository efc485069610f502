"""A micro-kernel: a small PTX text with its inputs, which runs the same here and on a GPU.

A kernel gets tensor maps (if any), the addresses of its inputs and of its output; its threads write `words` 32-bit
words each. ci/emulator_vs_gpu.py records what a GPU answers; the tests hold the emulator to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fuzz.devices.emulator.tensor_map import TensorMap

THREADS = 128  # of a CTA


@dataclass(frozen=True)
class MapArgument:
    """A tensor map as a kernel's argument. map.address counts bytes from the first one of input number `input`."""

    map: TensorMap
    input: int = 0


@dataclass(frozen=True)
class MicroKernel:
    """A PTX text with a kernel `k`, and what it is run with.

    form     what it covers
    inputs   arrays; of one element per thread where the kernel computes, of any length where it copies
    threads  in all; CTAs have at most THREADS
    words    of 32 bits that a thread writes to the output, which is zero before
    exact    must the answer agree bit for bit?
    maps     arguments before the inputs
    refuses  words of the finding with which the emulator refuses it; "": it runs it
    """

    form: str
    text: str
    inputs: tuple[np.ndarray, ...]
    threads: int
    words: int
    exact: bool = True
    maps: tuple[MapArgument, ...] = ()
    refuses: str = ""


def entry(body: str, inputs: int, registers: str, target: str = "sm_80", version: str = "8.0", shared: int = 0,
          align: int = 128, maps: int = 0) -> str:  # fmt: skip
    """A kernel named k: pointers to inputs and output in %in0 … and %out, its thread and index, and `body`. Its tensor
    maps are the parameters map0, …; shared memory is the variable s."""
    parameters = [f".param .align 64 .b8 map{i}[128]" for i in range(maps)]
    parameters += [*(f".param .u64 in{i}" for i in range(inputs)), ".param .u64 out"]
    loads = "".join(f"ld.param.u64 %in{i}, [in{i}];\n" for i in range(inputs))
    block = f".shared .align {align} .b8 s[{shared}];\n" if shared else ""
    return f""".version {version}
.target {target}
.address_size 64
.visible .entry k({", ".join(parameters)})
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
