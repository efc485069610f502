"""What targets share whose Triton kernels run on the emulated GPU: the block around a run, and its verdict."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from fuzz.core.target import DeviceError
from fuzz.devices.emulator_schedules import schedule_of


@contextmanager
def on_emulated_gpu(arch: str, repeat: int = 0, **settings: Any) -> Iterator[None]:
    """`emulated` for one run of a case, whose memory is known to be written or not.

    repeat    number of the run: each one but the first has its warps and CTAs in an order of its own
    settings  of every launch, those of LaunchConfig
    Raises DeviceError for what the emulated GPU finds, and for what it does not emulate.
    """
    from fuzz.devices.emulated_verdict import verdict_of
    from fuzz.devices.emulator import EmulationError, Unimplemented, emulated

    try:
        with emulated(arch, written=_unwritten(), **{**schedule_of(repeat), **settings}):
            yield
    except EmulationError as error:
        raise DeviceError(*verdict_of(error.report.kernel, error.report)) from error
    except Unimplemented as error:
        raise DeviceError("reject", (), {"emulator": f"the emulator does not know it yet: {error}"}) from error


@functools.cache
def _unwritten() -> Callable[[Tensor], Any]:
    """View of the memory that runs of this process have allocated: which of it is written."""
    from fuzz.devices.unwritten import Unwritten

    return Unwritten()
