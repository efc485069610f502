"""cuDNN's block-sparse targets: on a GPU, and on the emulated one."""

from __future__ import annotations

from fuzz.targets.cudnn_block_sparse.emulated import EmulatedCudnnBlockSparse
from fuzz.targets.cudnn_block_sparse.target import CudnnBlockSparse


def targets() -> list[CudnnBlockSparse]:
    """Both."""
    return [CudnnBlockSparse(), EmulatedCudnnBlockSparse()]
