"""What is seen of a GPU while a child hangs on it: utilisation, memory, and a core dump that names kernel and blocks.

All best effort, each with a limit: what fails stands in the evidence as text. The client never starts CUDA.
The core dump follows vLLM's recipe (blog, 2025-12-03): the driver of a process that was started with these variables
opens a pipe; writing to it stops every running kernel of the process, writes it to a file, and ends the process.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from fuzz.process.tool import Tool, find
from fuzz.runner.limits import Limits

_FIELDS = ("name", "utilization.gpu", "utilization.memory", "memory.used", "memory.total", "temperature.gpu")
_SKIP = (
    "nonrelocated_elf_images",
    "global_memory",
    "local_memory",
    "constbank_memory",
)  # shared memory stays: mbarriers
_POKE = bytes(1 << 16)  # a shorter write does not always start the dump


def environment(device: str) -> dict[str, str]:
    """Variables that bind a child to its device: it sees this GPU only, or none. Raises ValueError on another name.

    On the host malloc keeps no caches of small blocks per thread: newer glibcs (2.39) hand those out again without
    poison (fuzz/tensors/guard_bands.py), and read the variable only when a process starts.
    """
    if without(device):
        tunables = ":".join(filter(None, (os.environ.get("GLIBC_TUNABLES"), "glibc.malloc.tcache_count=0")))
        return {"CUDA_VISIBLE_DEVICES": "", "GLIBC_TUNABLES": tunables}
    order = os.environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # nvidia-smi's, so that its numbers are ours
    return {"CUDA_DEVICE_ORDER": order, "CUDA_VISIBLE_DEVICES": identity(device)}


def without(device: str) -> bool:
    """True for a device of a child that sees no GPU: 'host', the emulated GPU, Triton's interpreter."""
    return device in ("host", "emulator", "interpreter")


def identity(device: str) -> str:
    """What nvidia-smi calls 'cuda:N': the Nth of CUDA_VISIBLE_DEVICES where that is set, else N."""
    kind, _, number = device.partition(":")
    if kind != "cuda" or not (number or "0").isdigit():
        raise ValueError(f"device: must be 'host', 'emulator', 'interpreter' or 'cuda:N', got {device!r}")
    index = int(number or 0)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return str(index)
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if index >= len(names):
        raise ValueError(f"device: {device} is not among CUDA_VISIBLE_DEVICES={visible!r}")
    return names[index]


def ask(device: str, limits: Limits) -> Tool | None:
    """Starts the question for utilisation and memory; None without nvidia-smi."""
    program = find("nvidia-smi")
    if program is None:
        return None
    query = [f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    return Tool([program, "-i", identity(device), *query], limits.gpu)


def answered(tool: Tool | None) -> dict[str, Any]:
    """What came of `ask`."""
    if tool is None:
        return {"trouble": "nvidia-smi: not installed"}
    done, text = tool.result()
    values = [value.strip() for value in text.split(",")]
    if not done or len(values) != len(_FIELDS):
        return {"trouble": text}
    return {name: value if name == "name" else _number(value) for name, value in zip(_FIELDS, values, strict=True)}


class CoreDump:
    """A folder for one child's pipe and core file. Made before the child starts, removed with it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="attnfuzz-core-")
        self._pipe, self._file = (Path(self._folder.name) / name for name in ("pipe", "core"))

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the child."""
        return {
            "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "1",
            "CUDA_COREDUMP_PIPE": str(self._pipe),
            "CUDA_COREDUMP_FILE": str(self._file),
            "CUDA_COREDUMP_GENERATION_FLAGS": ",".join(f"skip_{name}" for name in _SKIP),
        }

    def take(self, limits: Limits, keep: Path | None) -> dict[str, Any]:
        """Triggers the dump, which ends the child, and sums it up. `keep`: where the file is kept, or None."""
        if not self._pipe.exists():
            return {"trouble": "the driver opened no pipe for core dumps"}
        began = monotonic()
        try:
            self._poke()
        except OSError as error:
            return {"trouble": f"the pipe does not take the request: {error}"}
        if not self._settled(began + limits.core):
            return {"trouble": f"no core dump within {limits.core:g} s"}
        found: dict[str, Any] = {"seconds": round(monotonic() - began, 3), "bytes": self._file.stat().st_size}
        found |= _read_core(self._file, limits)
        if keep is not None:
            keep.parent.mkdir(parents=True, exist_ok=True)
            keep.write_bytes(self._file.read_bytes())
            found["path"] = str(keep)
        return found

    def remove(self) -> None:
        """Removes the folder."""
        self._folder.cleanup()

    def _poke(self) -> None:
        pipe = os.open(self._pipe, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(pipe, _POKE)
        finally:
            os.close(pipe)

    def _settled(self, until: float) -> bool:
        """True if the file is there and has stopped growing."""
        size = -1
        while monotonic() < until:
            sleep(0.05)
            now = self._file.stat().st_size if self._file.exists() else -1
            if now > 0 and now == size:
                return True
            size = now
        return False


def _read_core(file: Path, limits: Limits) -> dict[str, str]:
    program = find("cuda-gdb")
    if program is None:
        return {"trouble": "cuda-gdb: not installed"}
    questions = ("info cuda kernels", "info cuda blocks")
    commands = [part for line in (f"target cudacore {file}", *questions) for part in ("-ex", line)]
    done, text = Tool([program, "--batch", *commands], limits.debugger).result()
    return {"summary" if done else "trouble": text[-8000:]}


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
