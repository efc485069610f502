"""The kernels of a PTX text as programs, read and decoded once: kept in the cache folder, from which other processes
take them in a tenth of the time.

A file there holds the module of one text and the programs that it was asked for; its name is the text's digest, its
folder's that of this file and of the sources that decode.
"""

from __future__ import annotations

import hashlib
import pickle
import time
import zlib
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from fuzz.devices.emulator import ptx
from fuzz.devices.emulator.config import AS_WRITTEN
from fuzz.devices.emulator.decode.decoder import Program, decode
from fuzz.devices.emulator.ptx_contraction import contracted
from fuzz.devices.emulator.state import kept_files
from fuzz.devices.emulator.state.code_cache import cache_folder
from fuzz.devices.emulator.translate.compiled import Translation

SECONDS = 0.02  # of the processor; what took less to read and decode is not kept
Form = tuple[str, bool, str]  # a kernel's name, for a launch with clusters of several CTAs, `LaunchConfig.contraction`


class Programs:
    """The kernels of one PTX module, decoded when first used: by name, for a launch with clusters of several CTAs or
    without, and by `LaunchConfig.contraction`.

    kept  in the cache folder. Not for PTX that nobody will run again, such as mutants
    """

    def __init__(self, text: str, kept: bool = True) -> None:
        self._file = _folder() / f"{_digest(text)}.program" if kept else None
        began = time.process_time()
        self.decoded: dict[Form, Program] = {}
        found = kept_files.read(self._file) if self._file else b""
        if found:
            self.module, self.decoded = pickle.loads(zlib.decompress(found))
        else:
            self.module = ptx.parse(text)
        self._symbols = set(self.module.kernels)  # users of the module may give kernels further names
        self.translations: dict[Form, Translation] = {}
        self._spent = time.process_time() - began

    def kernel(self, name: str) -> ptx.Kernel:
        """A kernel as it was read. Raises ValueError where the PTX does not have it."""
        if name not in self.module.kernels:
            raise ValueError(f"the PTX has no kernel {name!r}; it has {', '.join(self.module.kernels)}")
        return self.module.kernels[name]

    def get(self, name: str, clustered: bool = False, contraction: str = AS_WRITTEN) -> Program:
        """Micro-operations of a kernel, decoded when first asked for."""
        key = name, clustered, contraction
        if key not in self.decoded:
            began = time.process_time()
            kernel = contracted(self.kernel(name), contraction)
            self.decoded[key] = decode(self.module, replace(kernel, registers=dict(kernel.registers)), clustered)
            self._spent += time.process_time() - began
            if self._file and self._spent > SECONDS and name in self._symbols:
                self._keep(self._file)
        return self.decoded[key]

    def _keep(self, file: Path) -> None:
        """Writes what belongs to the text: names that kernels were given since are those of one user."""
        module = replace(self.module, kernels={name: self.module.kernels[name] for name in self._symbols})
        decoded = {key: program for key, program in self.decoded.items() if key[0] in self._symbols}
        kept_files.write(file, zlib.compress(pickle.dumps((module, decoded)), level=1))

    def translation(self, name: str, clustered: bool = False, contraction: str = AS_WRITTEN) -> Translation:
        """The machine code that there is of a kernel."""
        key = name, clustered, contraction
        if key not in self.translations:
            self.translations[key] = Translation(self.get(*key))
        return self.translations[key]


def _digest(text: str) -> str:
    """Digest of a text and of numpy's version, whose arrays are read as it wrote them."""
    return hashlib.sha256(f"{np.__version__}\n{text}".encode()).hexdigest()[:32]


@lru_cache
def _folder() -> Path:
    return cache_folder("programs")
