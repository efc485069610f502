"""The tables of `tables.py` as Python sees them: numpy arrays over the memory that compiled code reads and writes."""

from __future__ import annotations

import math

import numpy as np

from fuzz.devices.emulator.state.global_memory import MappedArrays
from fuzz.devices.emulator.state.tables import TABLES


class Machine:
    """The tables as numpy arrays (attributes), and the address that compiled code wants. rows: the outermost dimension
    of each."""

    def __init__(self, **rows: int) -> None:
        shapes = {name: (rows[name], *inner) for name, inner in TABLES.items()}
        pieces = MappedArrays(list=8 * len(TABLES), **{name: 8 * math.prod(shape) for name, shape in shapes.items()})
        self.arrays = {name: pieces.array(name, np.int64).reshape(shape) for name, shape in shapes.items()}
        pieces.array("list", np.int64)[:] = [pieces.at[name] for name in TABLES]
        self.address = pieces.at["list"]

    def __getattr__(self, name: str) -> np.ndarray:
        try:
            return self.__dict__["arrays"][name]
        except KeyError:
            raise AttributeError(name) from None
