"""Targets that never come back, each in another way."""

from __future__ import annotations

import ctypes
import mmap
import platform
import time

import torch
from honest import Result, attention, fake

_JUMP_TO_ITSELF = {"x86_64": b"\xeb\xfe", "aarch64": b"\x00\x00\x00\x14"}


@fake("sleeps")
def sleeps(*arguments) -> Result:
    """Sleeps in Python."""
    time.sleep(3600)
    return attention(*arguments)


@fake("spins_in_python")
def spins_in_python(*arguments) -> Result:
    """Spins in Python bytecode."""
    while True:
        arguments = tuple(arguments)


@fake("spins_holding_the_gil")
def spins_holding_the_gil(*arguments) -> Result:
    """Spins in native code that never releases the GIL: no Python thread or signal handler of the process runs."""
    _spin(ctypes.PYFUNCTYPE(None))
    return attention(*arguments)


@fake("spins_without_the_gil")
def spins_without_the_gil(*arguments) -> Result:
    """Spins in native code that has released the GIL, as a wait for a device does."""
    _spin(ctypes.CFUNCTYPE(None))
    return attention(*arguments)


@fake("hangs_in_backward")
def hangs_in_backward(*arguments) -> Result:
    """The forward is honest, the backward sleeps."""
    o, lse = attention(*arguments)
    return _SleepsInBackward.apply(o), lse


@fake("hangs_above_100_keys")
def hangs_above_100_keys(q, k, *arguments) -> Result:
    """Honest up to 100 keys."""
    if k.shape[2] > 100:
        time.sleep(3600)
    return attention(q, k, *arguments)


@fake("slow")
def slow(*arguments) -> Result:
    """Takes 0.8 s, far more than was expected, and is right."""
    time.sleep(0.8)
    return attention(*arguments)


class _SleepsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, o):
        return o.clone()

    @staticmethod
    def backward(ctx, do):
        time.sleep(3600)
        return do


def _spin(kind) -> None:
    """Runs one instruction that jumps to itself, through a ctypes prototype that keeps or releases the GIL."""
    code = _JUMP_TO_ITSELF[platform.machine()]
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    kind(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
