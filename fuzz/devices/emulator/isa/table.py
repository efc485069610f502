"""The table of register-to-register instructions: PTX form → operand types and meaning on 32 lanes.

An entry is data plus one small function that writes LLVM IR, so a new form is one line. Types are those of the operands
in registers: b16 b32 b64 f16 bf16 f32 f64, p (predicate), and pairs f16x2 bf16x2 (in 32 bits), f32x2 (in 64). The rows
are in `forms_integers.py`, `forms_moves.py`, `forms_floats.py`; `forms.py` has them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fuzz.devices.emulator.isa.vectors import Value

Builder = Callable[..., Value]


@dataclass(frozen=True)
class Form:
    """One instruction form: the type of its result, of its operands, and the function that writes it."""

    name: str
    result: str
    operands: tuple[str, ...]
    write: Builder


FORMS: dict[str, Form] = {}


def add(names: str | list[str], result: str, operands: str, write: Builder) -> None:
    for name in [names] if isinstance(names, str) else names:
        assert name not in FORMS, name
        FORMS[name] = Form(name, result, tuple(operands.split()), write)


def typed(op: str, widths: tuple[int, ...], signs: str, mods: tuple[str, ...] = ("",)) -> list[tuple[list[str], str]]:
    """The names of one operation for each width, with the register type: [(['add.s32', 'add.u32'], 'b32'), …]."""
    return [([f"{op}{m}.{s}{w}" for s in signs for m in mods], f"b{w}") for w in widths]
