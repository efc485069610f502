"""`attnfuzz repro --trace`: where the timeline of an emulated run goes, and what was written."""

from __future__ import annotations

from pathlib import Path

from fuzz.core.target import Target
from fuzz.targets.registry import TargetError


def place(target: Target, name: str | None) -> Path | None:
    """Path of the timeline, with what an earlier run left there removed; None where none is asked for.

    Raises TargetError for a target that keeps none, and for a name that cannot be.
    """
    if not name:
        return None
    if target.device != "emulator" or not target.traces:
        why = "is launched by Triton, not by the harness" if target.device == "emulator" else f"runs on {target.device}"
        raise TargetError(f"--trace follows kernels that the harness launches on the emulated GPU: {target.name} {why}")
    path = Path(name)
    if path.suffix == ".svg":
        raise TargetError("--trace: needs a name that does not end in .svg, which is the picture's beside it")
    if not path.resolve().parent.is_dir():
        raise TargetError(f"--trace: {path.resolve().parent} is no folder")
    for old in (path, path.with_suffix(".svg")):
        old.unlink(missing_ok=True)
    return path


def written(path: Path) -> str:
    """One line: what was written, or that nothing was."""
    if path.is_file():
        return f"trace: {path} (for https://ui.perfetto.dev), {path.with_suffix('.svg')}"
    return "attnfuzz: no trace: the case did not launch a kernel"
