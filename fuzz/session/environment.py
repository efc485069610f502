"""Environment of a session: host, packages, driver and revision, as session.json keeps them for the ledger."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

import msgspec

from fuzz.process.tool import find

ROOT = Path(__file__).parents[2]
LIMIT = 20.0  # seconds that an outside program may take


class Environment(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a session ran in.

    packages  version of every installed distribution by its name, with 'python', and with 'nvidia-driver' beside a GPU
    commit    full hash of the checkout's commit; where there is no checkout, the version of the package
    changed   True if files of the checkout were edited since
    at        time of the commit in seconds of the epoch, 0 where it is not known
    archs     by target: what its kernels are compiled for, with 'emulated-' where they run on the emulated GPU; the
              device where nothing is compiled
    """

    host: str = ""
    packages: dict[str, str] = {}
    commit: str = ""
    changed: bool = False
    at: float = 0.0
    archs: dict[str, str] = {}


def environment(archs: dict[str, str] | None = None) -> Environment:
    """The environment of this process. Takes a quarter of a second."""
    commit, changed, at = _revision()
    return Environment(platform.node(), _packages(), commit, changed, at, archs or {})


def gpu_arch() -> str:
    """'sm_90' of the first GPU, as its driver says; '' where there is none."""
    capability = _gpu("compute_cap")
    return f"sm_{capability.replace('.', '')}" if capability else ""


def _packages() -> dict[str, str]:
    found = {"python": platform.python_version()}
    if driver := _gpu("driver_version"):
        found["nvidia-driver"] = driver
    for one in distributions():
        name = one.metadata["Name"]
        if name:
            found.setdefault(name.lower().replace("_", "-"), one.version)
    return dict(sorted(found.items()))


def _revision() -> tuple[str, bool, float]:
    if (ROOT / ".git").exists() and (said := _said("git", "-C", str(ROOT), "log", "-1", "--format=%H %ct")):
        commit, _, at = said.partition(" ")
        changed = bool(_said("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"))
        return commit, changed, float(at)
    try:
        return version("attnfuzz"), False, 0.0
    except PackageNotFoundError:
        return "", False, 0.0


def _gpu(field: str) -> str:
    return _said("nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader").partition("\n")[0].strip()


def _said(program: str, *arguments: str) -> str:
    """Output of a program; '' where it is not there, or fails."""
    path = find(program)
    if path is None:
        return ""
    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=LIMIT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
