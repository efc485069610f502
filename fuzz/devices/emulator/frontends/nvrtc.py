"""CUDA C++ to PTX by NVRTC, NVIDIA's compiler as a library. It needs no GPU and no driver; the extra `cuda` installs it
with CUDA's headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

INSTALL = "pip install 'attnfuzz[cuda]'"
_INTEGERS = "".join(
    f"typedef {sign}{type_} {u}int{bits}_t;\n"
    for bits, type_ in {8: "char", 16: "short", 32: "int", 64: "long"}.items()
    for u, sign in {"": "signed ", "u": "unsigned "}.items()
)
# The C library's headers, which NVRTC does not have: it knows printf, assert and the mathematical functions itself.
HEADERS = dict.fromkeys(
    ("assert.h", "cassert", "stdio.h", "cstdio", "stdlib.h", "cstdlib", "math.h", "cmath", "stddef.h", "cstddef"), ""
) | dict.fromkeys(("stdint.h", "cstdint"), _INTEGERS)


class CudaCompileError(ValueError):
    """CUDA C++ that NVRTC refuses; the text is NVRTC's log, with the source's lines."""


@dataclass(frozen=True)
class Compiled:
    """PTX, and the PTX name of every name expression that it was compiled with."""

    ptx: str
    lowered: Mapping[str, str]


def compile_cuda(
    source: str,
    arch: str,
    *,
    file: str = "kernel.cu",
    options: Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
    expressions: Sequence[str] = (),
) -> Compiled:
    """Compiles CUDA C++ text, with the source's lines kept.

    arch         'sm_90a'
    file         what the source is called in errors and findings
    options      more of NVRTC's: '-DTILE=64', '--use_fast_math'
    headers      texts by the name that #include gives; HEADERS stand in for those of the C library
    expressions  names of kernels as C++ writes them: 'scale<float, 4>'

    Raises CudaCompileError, and ModuleNotFoundError where NVRTC is not installed.
    """
    nvrtc, include = _library()
    given = {name.encode(): text.encode() for name, text in {**HEADERS, **(headers or {})}.items()}
    program = _check(
        nvrtc,
        nvrtc.nvrtcCreateProgram(source.encode(), file.encode(), len(given), list(given.values()), list(given)),
    )
    try:
        for expression in expressions:
            _check(nvrtc, nvrtc.nvrtcAddNameExpression(program, expression.encode()))
        arguments = [f"--gpu-architecture={arch.replace('sm_', 'compute_')}", "-lineinfo", "--std=c++17"]
        arguments += [*(f"--include-path={folder}" for folder in include), *options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(arguments), [one.encode() for one in arguments])
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = _text(nvrtc, program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
            raise CudaCompileError(f"{file} does not compile for {arch} ({status.name}):\n{log}")
        lowered = {one: _check(nvrtc, nvrtc.nvrtcGetLoweredName(program, one.encode())) for one in expressions}
        text = _text(nvrtc, program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
        return Compiled(text, {one: name.decode() for one, name in lowered.items()})
    finally:
        nvrtc.nvrtcDestroyProgram(program)


@lru_cache
def _library() -> tuple[Any, list[Path]]:
    """(NVRTC's module, the folders of CUDA's headers)."""
    try:
        from cuda import pathfinder
        from cuda.bindings import nvrtc

        library = Path(pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path)
    except (ImportError, RuntimeError) as error:  # DynamicLibNotFoundError is a RuntimeError
        raise ModuleNotFoundError(f"CUDA C++ kernels need NVRTC, which is not installed: {INSTALL}") from error
    include = library.parent.parent / "include"
    return nvrtc, [folder for folder in (include, include / "cccl") if folder.is_dir()]


def _check(nvrtc: Any, answer: tuple[Any, ...]) -> Any:
    """What a call of NVRTC gave. Raises CudaCompileError for an error that is not the source's."""
    status, *value = answer
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CudaCompileError(f"NVRTC: {status.name}")
    return value[0] if value else None


def _text(nvrtc: Any, program: Any, size_of: Any, read: Any) -> str:
    """A text that NVRTC holds."""
    buffer = b" " * _check(nvrtc, size_of(program))
    _check(nvrtc, read(program, buffer))
    return buffer.rstrip(b"\0 \n").decode()
