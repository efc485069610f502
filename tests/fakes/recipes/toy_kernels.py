"""Recipes for the compile workers: a CuTe DSL kernel that compiles, and ones that hang, crash, raise and lie."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import cuda.bindings.driver as cuda
import cutlass
from cutlass import cute
from cutlass.cute.runtime import make_fake_stream, make_ptr

_hidden = [0.0]  # decides the code, and no name that the compiler makes up


@cute.kernel
def _add_kernel(mX: cute.Pointer, count: cutlass.Int32, value: cutlass.Constexpr, threads: cutlass.Constexpr):
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    i = bidx * threads + tidx
    gX = cute.make_tensor(mX, cute.make_layout((count,)))
    if i < count:
        gX[i] = gX[i] + cutlass.Float32(value) + cutlass.Float32(_hidden[0])


@cute.jit
def _add(
    mX: cute.Pointer,
    count: cutlass.Int32,
    value: cutlass.Constexpr,
    threads: cutlass.Constexpr,
    stream: cuda.CUstream,
):
    _add_kernel(mX, count, value, threads).launch(
        grid=[(count + threads - 1) // threads, 1, 1], block=[threads, 1, 1], stream=stream
    )


def add(options: dict, arch: str):
    """Adds options['value'] to `count` floats."""
    if "seconds" in options:
        time.sleep(options["seconds"])
    pointer = make_ptr(cutlass.Float32, 16, cute.AddressSpace.gmem, assumed_align=16)
    _hidden[0] = float(options.get("hidden", 0))
    if "count" in options:  # how often this was called, by whichever process
        with Path(options["count"]).open("a") as file:
            file.write(f"{os.getpid()}\n")
    return cute.compile(
        _add,
        pointer,
        cutlass.Int32(1),
        options["value"],
        128,
        make_fake_stream(),
        options=f"--gpu-arch {options.get('arch', arch)}",
    )


def hangs(options: dict, arch: str):
    """Never comes back; leaves a grandchild, as a compiler that calls an assembler does."""
    subprocess.Popen(["sleep", "3600"])
    time.sleep(3600)


def crashes(options: dict, arch: str):
    """Reads address 0 in native code."""
    print("about to crash", flush=True)
    ctypes.string_at(0)


def raises(options: dict, arch: str):
    """Raises, as the compiler does on a kernel that it does not take."""
    raise ValueError("tile_m: must be 64 or 128, got 48")


def leaves(options: dict, arch: str):
    """Tries to leave the interpreter."""
    raise SystemExit(3)


def half(options: dict, arch: str):
    """Compiles, and is killed while it exports."""
    compiled = add({"value": 1}, arch)

    class Half:
        artifacts = compiled.artifacts

        def export_to_c(self, folder: str, name: str, prefix: str) -> None:
            (Path(folder) / f"{name}.o").write_bytes(b"\x7fELF half")
            os.kill(os.getpid(), 9)

    return Half()


def kills_server(options: dict, arch: str):
    """Kills the process that it was forked from, once."""
    marker = Path(options["marker"])
    if not marker.exists():
        marker.write_text("")
        os.kill(os.getppid(), 9)
        time.sleep(5)
    return add({"value": 1}, arch)


def raises_without_a_log(options: dict, arch: str):
    """Raises, where nothing can be written to the log any more."""
    sys.stderr = open("/dev/full", "w", buffering=1)  # noqa: SIM115
    raises(options, arch)


def full_disk(options: dict, arch: str):
    """Compiles; of the PTX only a part could be written, as on a full disk: the compiler does not say so."""
    compiled = add({"value": 1}, arch)
    ptx = compiled.artifacts.PTX
    part = ptx[: int(len(ptx) * options["at"])]
    return SimpleNamespace(artifacts=SimpleNamespace(PTX=part), export_to_c=compiled.export_to_c)


def dies_with_temporary_files(options: dict, arch: str):
    """Is killed while it has a temporary folder."""
    (Path(tempfile.mkdtemp()) / "kernel.ptx").write_text("half")
    os.kill(os.getpid(), 9)
