"""Parameters of a CUDA C++ kernel: their names as the source has them, their types as its symbol has them, and Python
values as the bytes of the parameter block."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral, Real
from typing import Any

import torch

from fuzz.devices.emulator.ptx import Param

_BYTES = (torch.int8, torch.uint8, torch.bool)
_SHORTS, _INTS, _LONGS = (
    (torch.int16, torch.uint16),
    (torch.int32, torch.uint32),
    (torch.int64, torch.uint64),
)
DTYPES: dict[str, tuple[torch.dtype, ...]] = {
    "float": (torch.float32,), "double": (torch.float64,), "__half": (torch.float16,),
    "__nv_bfloat16": (torch.bfloat16,), "bool": _BYTES, "char": _BYTES, "signed char": _BYTES, "unsigned char": _BYTES,
    "short": _SHORTS, "unsigned short": _SHORTS, "int": _INTS, "unsigned int": _INTS, "long": _LONGS,
    "unsigned long": _LONGS, "long long": _LONGS, "unsigned long long": _LONGS,
}  # fmt: skip
_ALIASES = {
    "unsigned": "unsigned int", "half": "__half", "nv_bfloat16": "__nv_bfloat16", "size_t": "unsigned long",
    "int8_t": "signed char", "uint8_t": "unsigned char", "int16_t": "short", "uint16_t": "unsigned short",
    "int32_t": "int", "uint32_t": "unsigned int", "int64_t": "long", "uint64_t": "unsigned long",
}  # fmt: skip
_SHORT_FLOATS = {"__half": torch.float16, "__nv_bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Parameter:
    """A kernel's parameter. name: of the source, or 'argument 2'; type: C++'s, '' where it is not known; the rest is
    PTX's: bytes, and the place in the parameter block."""

    name: str
    type: str
    size: int
    offset: int
    kind: str

    @property
    def is_pointer(self) -> bool:
        """True for a pointer, as far as the type tells."""
        return self.type.endswith("*")


def demangled(symbol: str) -> str:
    """A C++ symbol as C++ writes it: 'scale(float*, int)'; the symbol where it is none."""
    function = _demangle()
    if function is None or not symbol.startswith("_Z"):
        return symbol
    status = ctypes.c_int(0)
    at = function(symbol.encode(), None, None, ctypes.byref(status))
    if not at:
        return symbol
    text = ctypes.string_at(at).decode()
    ctypes.CDLL(None).free(ctypes.c_void_p(at))
    return text


def short_name(symbol: str) -> str:
    """A kernel's name without its parameters: 'scale', 'scale<float, 4>'."""
    text = demangled(symbol)
    if not text.endswith(")"):
        return text
    name = text[: _opening(text)]
    return name.removeprefix("void ") if name.startswith("void ") else name


def parameters(params: Sequence[Param], symbol: str, source: str) -> tuple[Parameter, ...]:
    """The parameters of the kernel `symbol`, whose PTX has `params`, in `source`."""
    text = demangled(symbol)
    plain = re.escape(re.sub(r"<.*", "", short_name(symbol)).split("::")[-1])
    written = [m[1] for m in re.finditer(rf"\b{plain}\s*\(([^()]*)\)\s*\{{", source)]
    in_source = [_split(one) for one in written if len(_split(one)) == len(params)]
    declared = in_source[0] if len(in_source) == 1 else []
    types = _split(text[_opening(text) + 1 : -1]) if text.endswith(")") else [_type_of(one) for one in declared]
    if len(types) != len(params):
        types = [""] * len(params)
    names = [re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)?$", one) for one in declared] or [None] * len(params)
    return tuple(
        Parameter(name[1] if name else f"argument {i}", _plain(type_), p.size, p.offset, p.kind)
        for i, (name, type_, p) in enumerate(zip(names, types, params, strict=True))
    )


def check_tensor(parameter: Parameter, tensor: torch.Tensor) -> None:
    """Raises ValueError where the parameter takes no pointer to the tensor's elements."""
    if parameter.size != 8 or parameter.kind[-2:] != "64" or (parameter.type and not parameter.is_pointer):
        raise ValueError(f"{parameter.name}: is {parameter.type or f'of {parameter.size} bytes'}, got a tensor")
    wanted = DTYPES.get(parameter.type[:-1].strip())
    if wanted is not None and tensor.dtype not in wanted:
        raise ValueError(f"{parameter.name}: is {parameter.type}, got a tensor of {tensor.dtype}; wants {wanted[0]}")


def scalar_bytes(parameter: Parameter, value: Any) -> bytes:
    """A value other than a tensor as the kernel gets it: numbers, None for a null pointer, and bytes or a ctypes
    structure for a struct. Raises ValueError where it does not fit."""
    name, size, type_ = parameter.name, parameter.size, parameter.type or f"of {parameter.size} bytes"
    if isinstance(value, bytes | ctypes.Structure | ctypes.Array):
        data = bytes(value)
        if len(data) != size:
            raise ValueError(f"{name}: is {type_}, {size} bytes, got {len(data)} bytes")
        return data
    if value is None or (parameter.is_pointer and not (isinstance(value, Integral) and value == 0)):
        if value is None and size == 8 and (parameter.is_pointer or not parameter.type):
            return bytes(8)
        raise ValueError(f"{name}: is {type_}, wants a CPU tensor or None, got {type(value).__name__}")
    if not isinstance(value, Real):
        raise ValueError(f"{name}: is {type_}, got {type(value).__name__}")
    if parameter.type in _SHORT_FLOATS:
        number = torch.tensor([float(value)], dtype=_SHORT_FLOATS[parameter.type])
        return bytes(number.view(torch.uint8).tolist())
    if parameter.kind.endswith("[]"):
        raise ValueError(f"{name}: is a struct of {size} bytes, got {value!r}; wants bytes or a ctypes structure")
    if parameter.kind in ("f32", "f64"):
        return bytes(ctypes.c_float(float(value)) if size == 4 else ctypes.c_double(float(value)))
    whole = int(float(value)) if not isinstance(value, Integral) else int(value)
    if whole != value:
        raise ValueError(f"{name}: is {type_}, got {value!r}")
    if not -(1 << 8 * size - 1) <= whole < 1 << 8 * size:
        raise ValueError(f"{name}: is {type_}, {size} bytes, which {whole} does not fit")
    return (whole % (1 << 8 * size)).to_bytes(size, "little")


@lru_cache
def _demangle() -> Any:
    """The C++ runtime's demangler, or None where there is none."""
    for library in ("libstdc++.so.6", "libc++abi.so.1"):
        try:
            function = ctypes.CDLL(library).__cxa_demangle
        except (OSError, AttributeError):
            continue
        function.restype = ctypes.c_void_p
        function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        return function
    return None


def _opening(text: str) -> int:
    """The place of the parenthesis that the last one closes."""
    depth = 0
    for at in range(len(text) - 1, -1, -1):
        depth += (text[at] == ")") - (text[at] == "(")
        if depth == 0:
            return at
    return len(text)


def _split(text: str) -> list[str]:
    """The parts between commas that are in no brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "<([{") - (c in ">)]}")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [part.strip() for part in parts if part.strip()]


def _type_of(declaration: str) -> str:
    """'const float* __restrict__ x' → 'float*'."""
    words = re.sub(r"\b(const|volatile|__restrict__|__restrict|__grid_constant__)\b", " ", declaration)
    match = re.fullmatch(r"(.*?)(\w+)\s*((?:\[[^\]]*\]\s*)?)", words.strip(), re.S)
    return "" if match is None else match[1] + "*" * bool(match[3])


def _plain(type_: str) -> str:
    """A type without qualifiers and aliases: 'float const*' → 'float*'."""
    words = " ".join(re.sub(r"\b(const|volatile|__restrict__)\b", " ", type_).replace("*", " * ").split())
    base = words.rstrip("* ")
    return _ALIASES.get(base, base) + "*" * words.count("*")
