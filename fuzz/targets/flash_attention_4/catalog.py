"""FlashAttention-4's targets: on a GPU, and on the emulated one."""

from __future__ import annotations

from fuzz.targets.flash_attention_4.emulated import EmulatedFlashAttention4
from fuzz.targets.flash_attention_4.target import FlashAttention4


def targets() -> list[FlashAttention4]:
    """Both."""
    return [FlashAttention4(), EmulatedFlashAttention4()]
