"""All the micro-kernels in a fixed order, and one run on the emulator."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np
import torch

from fuzz.devices.emulator.api import Emulator
from fuzz.devices.emulator.conformance.bulk.suite import bulk_kernels
from fuzz.devices.emulator.conformance.clusters import cluster_kernels
from fuzz.devices.emulator.conformance.kernel import THREADS, MicroKernel
from fuzz.devices.emulator.conformance.mbarriers import mbarrier_kernels
from fuzz.devices.emulator.conformance.micro_kernels import (
    exchange_kernels,
    form_kernels,
    matrix_kernels,
    memory_kernels,
    nan_kernels,
    tiny_kernels,
)
from fuzz.devices.emulator.conformance.wgmma import wgmma_kernels
from fuzz.devices.emulator.host.tiled_tensor import MappedTensor


def all_kernels() -> Iterator[MicroKernel]:
    """The whole set, in a fixed order."""
    yield from form_kernels()
    yield from nan_kernels()
    yield from tiny_kernels()
    yield from matrix_kernels()
    yield from exchange_kernels()
    yield from memory_kernels()
    yield from wgmma_kernels()
    yield from bulk_kernels()
    yield from mbarrier_kernels()
    yield from cluster_kernels()


def emulate(kernel: MicroKernel, emulator: Emulator | None = None) -> np.ndarray:
    """Runs a micro-kernel: its output, uint32 (threads, words). Raises EmulationError or Unimplemented where the
    emulator refuses it. emulator: one that looks for races and unwritten memory where there is none."""
    out = torch.zeros(kernel.threads * kernel.words, dtype=torch.int32)
    tensors = [
        torch.from_numpy(x.reshape(-1).view({2: np.int16, 4: np.int32, 8: np.int64}[x.itemsize]).copy())
        for x in kernel.inputs
    ]
    maps = [MappedTensor(tensors[a.input], a.map) for a in kernel.maps]
    block = min(kernel.threads, THREADS)
    emulator = emulator or Emulator(checks=frozenset({"races", "uninitialised"}))
    emulator.load_ptx(kernel.text).launch("k", (kernel.threads // block,), (block,), [*maps, *tensors, out])
    return out.numpy().view(np.uint32).reshape(kernel.threads, kernel.words)


def digest(answer: np.ndarray) -> str:
    """A short fingerprint of an answer."""
    return struct.pack(">I", zlib.crc32(np.ascontiguousarray(answer).tobytes())).hex()
