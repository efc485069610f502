"""`attnfuzz doctor`: what this machine has and lacks, line by line, each with the command that mends it.

A table of (name, probe, remedy) that a short loop walks. What could start CUDA, hang or crash runs in a process of its
own with a limit; nothing here imports torch.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, TypeAlias

from fuzz.core.import_check import conflict
from fuzz.process.tool import find

Status: TypeAlias = Literal["ok", "warning", "missing"]
LIMIT = 60.0
GIB = 1 << 30
MARKS = {"ok": "ok     ", "warning": "warning", "missing": "MISSING"}
WRONG_TRITON = "3.6."  # it leaves out fences before wgmma, and its ptxas miscompiles
INSTALL = f"{Path(sys.executable).name} -m pip install -c constraints.txt -e '.[dev]'"


@dataclass(frozen=True)
class Check:
    """One line: what was looked at, what was found, and for anything but 'ok' the command that mends it."""

    name: str
    status: Status
    value: str
    remedy: str = ""


Found: TypeAlias = tuple[Status, str]
Probe: TypeAlias = Callable[["Machine"], Found]


@dataclass
class Machine:
    """Answers that several probes share: torch's, asked once in a process of its own; whether there is a GPU."""

    torch: dict[str, object]
    gpus: list[str]
    driver_error: str

    @staticmethod
    def look() -> Machine:
        """Asks torch and nvidia-smi."""
        answer, error = _ask(_TORCH)
        torch = json.loads(answer) if answer else {"error": error}
        query = "--query-gpu=name,compute_cap,memory.total,driver_version"
        smi = find("nvidia-smi")
        if smi is None:
            return Machine(torch, [], "no nvidia-smi")
        ran, error = _run([smi, query, "--format=csv,noheader"], 20)
        return Machine(torch, [line.strip() for line in ran.splitlines() if line.strip()], error)

    @property
    def cuda(self) -> bool:
        """True if a GPU is there."""
        return bool(self.gpus)


_TORCH = """
import json, torch
found = {"version": torch.__version__, "cuda": torch.version.cuda, "threads": torch.get_num_threads(), "devices": []}
for i in range(torch.cuda.device_count() if torch.version.cuda else 0):
    p = torch.cuda.get_device_properties(i)
    found["devices"].append([p.name, f"sm_{p.major}{p.minor}", p.total_memory])
print(json.dumps(found))
"""


def checks() -> list[Check]:
    """Every line of the table, in order. Takes a few seconds; never raises, never starts CUDA in this process."""
    machine = Machine.look()
    return [_check(name, probe, remedy, machine) for name, probe, remedy in TABLE]


def render(found: list[Check]) -> str:
    """The lines as text, with the remedy below whatever is not ok, and a newline at the end."""
    width = max(len(check.name) for check in found)
    lines = []
    for check in found:
        lines.append(f"{MARKS[check.status]}  {check.name:{width}}  {check.value}")
        if check.status != "ok" and check.remedy:
            lines.append(f"{'':7}  {'':{width}}  → {check.remedy}")
    bad = [check.name for check in found if check.status == "missing"]
    lines.append("" if not bad else f"missing: {', '.join(bad)}")
    return "\n".join(lines).rstrip() + "\n"


def _check(name: str, probe: Probe, remedy: str, machine: Machine) -> Check:
    try:
        status, value = probe(machine)
    except Exception as error:  # a probe that fails is a finding about the machine, not a crash of the doctor
        status, value = "warning", f"could not be looked at: {type(error).__name__}: {error}"
    return Check(name, status, value, remedy if status != "ok" else "")


def _python(_: Machine) -> Found:
    at = f"{platform.python_version()} ({sys.executable})"
    return ("ok" if sys.version_info >= (3, 11) else "missing"), at


def _torch(machine: Machine) -> Found:
    found = machine.torch
    if "error" in found:
        return "missing", str(found["error"])
    build = f"CUDA {found['cuda']} build" if found["cuda"] else "CPU build"
    text = f"{found['version']}, {build}, {found['threads']} threads"
    if machine.cuda and not found["cuda"]:
        return "missing", text + ", but this machine has a GPU"
    return "ok", text


def _devices(machine: Machine) -> Found:
    devices = machine.torch.get("devices") or []
    if not machine.cuda and not devices:
        return "ok", "none: kernels run on the host"
    if not devices:
        return "missing", f"torch sees none of {len(machine.gpus)} GPUs"
    assert isinstance(devices, list)
    return "ok", "; ".join(f"{name}, {arch}, {size / GIB:.0f} GiB" for name, arch, size in devices)


def _driver(machine: Machine) -> Found:
    if machine.cuda:
        return "ok", "driver " + ", ".join(sorted({line.split(",")[-1].strip() for line in machine.gpus}))
    if machine.driver_error == "no nvidia-smi":
        return "ok", "none (no nvidia-smi)"
    return "warning", machine.driver_error or "nvidia-smi lists no GPU"


def _triton(machine: Machine) -> Found:
    status, text = _package("triton", machine)
    if status != "ok":
        return status, text
    where = "on the GPU" if machine.cuda else "on the emulated GPU (no GPU)"
    if text.startswith(WRONG_TRITON):
        return "warning", f"{text}, {where}: wrong kernels for Hopper, see docs/explanation/dynamic_mask.md"
    return "ok", f"{text}, {where}"


def _package(name: str, _: Machine) -> Found:
    try:
        return "ok", version(name)
    except PackageNotFoundError:
        return "missing", "not installed"


def _folder(name: str, _: Machine) -> Found:
    wrong = conflict(name)
    return (
        ("missing", wrong.removeprefix("attnfuzz: "))
        if wrong
        else ("ok", str(Path(__file__).resolve().parents[2] / name))
    )


def _py_spy(_: Machine) -> Found:
    """Tries it: a child that sleeps, and py-spy to read its stack, as for a kernel that hangs."""
    program = find("py-spy")
    if program is None:
        return "missing", "not installed"
    child = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); import time; time.sleep(60)"], stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        text, error = _run([program, "dump", "--nonblocking", "--pid", str(child.pid)], 20)
    finally:
        child.kill()
        child.communicate()
    if "Thread" in text:
        return "ok", f"{version('py-spy')}, may read a child's stack"
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    told = f" (ptrace_scope {scope.read_text().strip()})" if scope.exists() else ""
    return "warning", f"may not read a child's stack{told}: {error or text}"


def _tool(name: str, why: str, machine: Machine) -> Found:
    program = find(name) or next((str(path) for path in _cuda_tools(name)), None)
    if program:
        return "ok", program
    return ("warning" if machine.cuda else "ok"), f"none; {why}" + ("" if machine.cuda else " (no GPU here)")


def _cuda_tools(name: str) -> list[Path]:
    return [
        path for path in sorted(Path("/usr/local").glob(f"cuda*/bin/{name}"), reverse=True) if os.access(path, os.X_OK)
    ]


def _disk(_: Machine) -> Found:
    free = shutil.disk_usage(Path.cwd()).free
    return ("ok" if free > 2 * GIB else "warning"), f"{free / GIB:.1f} GiB free in {Path.cwd()}"


def _memory(_: Machine) -> Found:
    import psutil

    free, cores = psutil.virtual_memory().available, len(os.sched_getaffinity(0))
    return ("ok" if free > GIB * max(cores, 2) else "warning"), f"{free / GIB:.1f} GiB free, {cores} cores"


def _shared(_: Machine) -> Found:
    where = Path("/dev/shm")
    if not where.is_dir() or not os.access(where, os.W_OK):
        return "warning", "no writable /dev/shm"
    free = shutil.disk_usage(where).free
    return ("ok" if free >= 64 << 20 else "warning"), f"{free / GIB:.1f} GiB free"


def _malloc(_: Machine) -> Found:
    """The function is there; poisoning itself is left to the processes that run kernels."""
    try:
        ctypes.CDLL("libc.so.6").mallopt  # noqa: B018 - the look-up is the probe
    except (OSError, AttributeError):
        return "warning", "not glibc: fresh memory of the host is not poisoned"
    return "ok", "glibc: fresh memory of the host is filled with 0xFF"


def _corpus(_: Machine) -> Found:
    from fuzz.corpus.store import load_all

    told = []
    for folder in ("corpus/must_pass", "corpus/regressions"):
        if not Path(folder).is_dir():
            return "warning", f"no {folder} in the working directory"
        told.append(f"{len(load_all(folder))} in {folder}")
    return "ok", ", ".join(told)


def _ask(program: str) -> tuple[str, str]:
    return _run([sys.executable, "-c", program], LIMIT)


def _run(command: list[str], limit: float) -> tuple[str, str]:
    """(output, ''), or ('', why it failed)."""
    try:
        ran = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"{Path(command[0]).name}: {error}"
    if ran.returncode:
        lines = (ran.stderr or ran.stdout).strip().splitlines()
        return "", f"{Path(command[0]).name}: {lines[-1] if lines else f'exit code {ran.returncode}'}"
    return ran.stdout, ""


_PTRACE = (
    "sudo sysctl kernel.yama.ptrace_scope=1   (in a container: --cap-add SYS_PTRACE); faulthandler is used meanwhile"
)
_TOOLKIT = "install NVIDIA's CUDA toolkit and put its bin folder on PATH"

TABLE: tuple[tuple[str, Probe, str], ...] = (
    ("Python", _python, "install Python 3.11 or newer, then: make clean install PYTHON=python3.11"),
    ("torch", _torch, INSTALL + "   (on a GPU machine: a CUDA build of torch)"),
    ("CUDA devices", _devices, "nvidia-smi   (driver loaded? CUDA_VISIBLE_DEVICES set? torch built for this driver?)"),
    ("driver", _driver, "nvidia-smi   (its message says what is wrong; often: sudo modprobe nvidia, or a reboot)"),
    ("triton", _triton, INSTALL),
    ("nvidia-cutlass-dsl", partial(_package, "nvidia-cutlass-dsl"), INSTALL),
    ("hypothesis", partial(_package, "hypothesis"), INSTALL),
    ("pytest-xdist", partial(_package, "pytest-xdist"), INSTALL),
    ("pytest-timeout", partial(_package, "pytest-timeout"), INSTALL),
    ("import kernels", partial(_folder, "kernels"), "pip uninstall kernels   (or rename the folder found)"),
    ("import oracles", partial(_folder, "oracles"), "pip uninstall oracles   (or rename the folder found)"),
    ("py-spy", _py_spy, _PTRACE),
    ("cuda-gdb", partial(_tool, "cuda-gdb", "no GPU state in the evidence of a hang"), _TOOLKIT),
    ("compute-sanitizer", partial(_tool, "compute-sanitizer", "no memcheck of native kernels"), _TOOLKIT),
    ("ncu", partial(_tool, "ncu", "no kernel profiles"), _TOOLKIT),
    ("disk", _disk, "free some: rm -r .attnfuzz/sessions .hypothesis"),
    ("memory", _memory, "run fewer workers: pytest -n 2 fuzz"),
    ("/dev/shm", _shared, "in a container: --shm-size 1g"),
    ("poisoned memory", _malloc, "run on a glibc system (Debian) to have it"),
    ("corpus", _corpus, "run attnfuzz in the repository's folder; git checkout -- corpus restores it"),
)
