"""The whole form table, in a fixed order; see `forms_table.py`."""

from fuzz.devices.emulator import forms_floats, forms_integers, forms_moves
from fuzz.devices.emulator.forms_table import FORMS, Form

__all__ = ["FORMS", "Form", "forms_floats", "forms_integers", "forms_moves"]
