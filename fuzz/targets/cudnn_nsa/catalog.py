"""The target of cuDNN's native sparse attention."""

from __future__ import annotations

from fuzz.targets.cudnn_nsa.target import CudnnNsaSelection


def targets() -> list[CudnnNsaSelection]:
    """The selection attention on the emulated GPU."""
    return [CudnnNsaSelection()]
