"""The whole form table: importing this fills it, in a fixed order; see `table.py`."""

from fuzz.devices.emulator.isa import doubles, floats, integers, moves, packed
from fuzz.devices.emulator.isa.table import FORMS, Form

__all__ = ["FORMS", "Form", "doubles", "floats", "integers", "moves", "packed"]
