"""The registry: built-in targets, those of installed packages (entry points), and a user's own files (--target-file).

An installed package offers targets through the entry point group 'attnfuzz.targets': each entry names a function
without arguments that returns a list of Target. Planted bugs are targets too, found by name, never part of a session
unasked.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path

from fuzz.core.target import Device, Target
from fuzz.process import triton_mode
from fuzz.targets import (
    flashinfer_prefill,
    torch_flex,
    torch_flex_emulated,
    torch_sdpa,
    torch_varlen,
    xformers_attention,
)
from fuzz.targets.blocksparse import catalog as blocksparse
from fuzz.targets.cudnn_block_sparse import catalog as cudnn_block_sparse
from fuzz.targets.cudnn_frontend import target as cudnn_frontend
from fuzz.targets.cudnn_nsa import catalog as cudnn_nsa
from fuzz.targets.dynamic_mask import catalog as dynamic_mask
from fuzz.targets.flash_attention_4 import catalog as flash_attention_4
from fuzz.targets.nsa import catalog as nsa
from fuzz.targets.sdpa import catalog as sdpa
from fuzz.targets.user_function import function as decorator

GROUP = "attnfuzz.targets"


class TargetError(ValueError):
    """No such target, or a target file that cannot be used; one line."""


def load(name: str, files: tuple[str, ...] = (), device: Device = "host") -> Target:
    """The target called `name` on `device`. Raises TargetError with the nearest names."""
    found = targets(files, device, mutants="!" in name)  # there are hundreds
    if name in found:
        return found[name]
    raise TargetError(f"target {name!r} is not known on {device}; known: {', '.join(targets(files, device))}")


def targets(files: tuple[str, ...] = (), device: Device = "host", *, mutants: bool = False) -> dict[str, Target]:
    """All targets of `device` by name, in a fixed order; mutants only when asked for. NOTE [taken in]: on the host they
    are those of the host, then of the interpreter where the session's Triton kernels are interpreted, then of the
    emulated GPU, each one that has no name of those before."""
    if device != "cuda":
        try:
            triton_mode.choose(files, device)
        except triton_mode.TritonModeError as error:
            raise TargetError(str(error)) from None
    listed: list[Target] = [
        *torch_sdpa.targets(),
        *torch_flex.targets(),
        *torch_flex_emulated.targets(),
        *torch_varlen.targets(),
        *sdpa.targets(),
        *dynamic_mask.targets(),
        *nsa.targets(),
    ]
    listed += [*blocksparse.targets(), *flash_attention_4.targets(), *cudnn_frontend.targets()]
    listed += [*cudnn_block_sparse.targets(), *cudnn_nsa.targets()]
    listed += [*xformers_attention.targets(), *flashinfer_prefill.targets(), *_installed()]
    for file in files:
        listed += _from_file(os.path.abspath(file))
    if mutants:
        listed += [*sdpa.mutants(), *dynamic_mask.mutants(), *nsa.mutants(), *blocksparse.mutants()]
    chosen: dict[str, Target] = {}
    for one in reversed(_devices(files, device)):
        chosen |= {target.name: target for target in listed if target.device == one}
    return {target.name: target for target in listed if chosen.get(target.name) is target}


def _devices(files: tuple[str, ...], device: Device) -> tuple[Device, ...]:
    """The devices whose targets a session on `device` has, the first for a name first; NOTE [taken in]."""
    if device in ("cuda", "emulator"):
        return (device,)
    interpreted = triton_mode.mode(files, device) == "interpreted"
    return ("host", "interpreter", "emulator") if interpreted else ("host", "emulator")


@functools.cache
def _installed() -> tuple[Target, ...]:
    found: list[Target] = []
    for entry in entry_points(group=GROUP):
        try:
            found += entry.load()()
        except Exception as error:
            raise TargetError(f"entry point {entry.name} ({entry.value}): {type(error).__name__}: {error}") from error
    if found:
        _import_for_gradients()
    return tuple(found)


@functools.cache
def _from_file(path: str) -> tuple[Target, ...]:
    """Runs a user's file and returns the targets that it declared."""
    if not Path(path).is_file():
        raise TargetError(f"target file {path}: no such file")
    name = "attnfuzz_target_" + Path(path).stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"target file {path}: not a Python file")
    before = len(decorator.DECLARED)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(Path(path).parent)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise TargetError(f"target file {path}: {type(error).__name__}: {error}") from error
    finally:
        with suppress(ValueError):  # what the file itself has put there stays
            sys.path.remove(folder)
    _import_for_gradients()
    declared: tuple[Target, ...] = tuple(decorator.DECLARED[before:])
    offered = getattr(module, "TARGETS", ())
    if not declared and not offered:
        raise TargetError(f"target file {path}: declares no target (use @target, or a list TARGETS)")
    return (*declared, *offered)


def _import_for_gradients() -> None:
    """Imports what the first `torch.autograd.grad` with a dO imports, a second of it, so that no run is to pay for it:
    the harness's own gradients do without (oracles/gradients.py), a user's target may not."""
    importlib.import_module("torch.fx.experimental.symbolic_shapes")
