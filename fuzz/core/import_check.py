"""Fails at the start, in one line, where an import would not find our own folders.

`kernels` is also the name of a package on PyPI: with that one installed, or a folder of that name in the working
directory, `import kernels` would give something else, and the failure would come deep inside.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

PACKAGES = {"kernels": "kernels/sdpa", "oracles": "oracles/problem.py"}


class GuardError(ImportError):
    """An import finds another package than ours; one line with the remedy."""


def check_packages() -> None:
    """Raises GuardError where `kernels` or `oracles` is not the folder that belongs to this `fuzz`."""
    for name in PACKAGES:
        problem = conflict(name)
        if problem:
            raise GuardError(problem)


def conflict(name: str) -> str | None:
    """What is wrong with the import of `name`, in one line, or None."""
    wanted = Path(PACKAGES[name]).relative_to(name)
    ours = Path(__file__).resolve().parents[2] / name
    found = where(name)
    if found == ours and (found / wanted).exists():
        return None
    if found is None:
        return f"attnfuzz: cannot import {name}: no such package on sys.path; run: pip install -e ."
    remedy = (
        f"pip uninstall {name}" if "site-packages" in found.parts else f"remove it from sys.path, or rename {found}"
    )
    return f"attnfuzz: `import {name}` finds {found}, not attnfuzz's own {ours}; {remedy}"


def where(name: str) -> Path | None:
    """The folder that `import name` finds (or has found); None where there is none."""
    loaded = sys.modules.get(name)
    spec: ModuleSpec | None = getattr(loaded, "__spec__", None) or find_spec(name)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path(spec.origin).resolve() if spec.origin else None
