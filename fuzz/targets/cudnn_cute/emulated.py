"""Kernels of nvidia-cudnn-frontend that were compiled ahead, on the emulated GPU."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from fuzz.compiling import obtain
from fuzz.core.target import DeviceError
from fuzz.devices.emulated_verdict import verdict_of

Function = Callable[..., None]


@functools.cache
def loaded(build: Any) -> Function:
    """The kernel of a build as a function of CPU tensors, with its host code."""
    from fuzz.devices.emulator.frontends.cute_functions import EmulatedFunction

    artifact = obtain(build)
    return EmulatedFunction(artifact.object, artifact.header["prefix"], artifact.ptx.read_text())


@functools.cache
def unwritten() -> Callable[[Tensor], Any]:
    """View of the memory that runs of this process have allocated: which of it is written."""
    from fuzz.devices.unwritten import Unwritten

    return Unwritten()


@contextlib.contextmanager
def verdicts(short: Callable[[str], str]) -> Iterator[None]:
    """Raises DeviceError for what the emulated GPU finds inside, and for what it does not emulate. short: the name of a
    kernel without its arguments' types."""
    from fuzz.devices.emulator import EmulationError, Unimplemented

    try:
        yield
    except EmulationError as error:
        raise DeviceError(*verdict_of(short(error.report.kernel), error.report)) from error
    except Unimplemented as error:
        raise DeviceError("reject", (), {"emulator": f"the emulator does not know it yet: {error}"}) from error
