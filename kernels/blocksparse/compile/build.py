"""Building a variant for an architecture, on any machine: no GPU is needed, nor looked for.

The compiled function takes flat arguments: raw addresses, integers and floats, and a stream. spec/signature.py lists
them, launch/ fills them from tensors.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cutlass
from cutlass import cute
from cutlass.cute.runtime import make_fake_stream, make_ptr
from cutlass.cutlass_dsl import CuTeDSL

from kernels.blocksparse.spec.signature import ARGUMENTS, DATA, GRADIENT
from kernels.blocksparse.spec.variant import ARCHES, ARCHES_OF, NO_INJECTION, PAIR_KEYS, Injection, Variant, build_name

_SCALARS = {"int32": cutlass.Int32, "int64": cutlass.Int64, "float32": cutlass.Float32}
DTYPES = {"bfloat16": cutlass.BFloat16, "float16": cutlass.Float16, **_SCALARS}


def build(variant: Variant, arch: str, injection: Injection = NO_INJECTION) -> Any:
    """Compile `variant` for `arch` and return cute.compile's function; `.artifacts.PTX` is its PTX.

    Raises ValueError for an unknown arch, an injection point that the kernel does not have, or a tuning that cannot
    work.
    """
    if arch not in ARCHES:
        raise ValueError(f"arch is {arch!r}; it must be one of {ARCHES}")
    kernel = _kernel(variant, arch, injection)
    # the compiler leaves PTX and cubin in a folder under one name for all variants: give every build its own
    with TemporaryDirectory() as folder, _compiling_for(arch):
        options = f"--keep-ptx --keep-cubin --dump-dir={folder}"
        return cute.compile(kernel, *fake_arguments(variant), make_fake_stream(), options=options)


@contextmanager
def _compiling_for(arch: str) -> Iterator[None]:
    """Sets the arch of one build, as CUTE_DSL_ARCH does for all. Objects of builds with the option --gpu-arch cannot be
    exported."""
    environment = CuTeDSL._get_dsl().envar
    environment.arch = arch
    try:
        yield
    finally:
        del environment.arch


def export(variant: Variant, arch: str, folder: str | Path, injection: Injection = NO_INJECTION) -> Path:
    """Build and write `folder`/NAME.o (and .h) with NAME = build_name(…), which runtime.artifact_source loads."""
    name = build_name(variant, arch, injection)
    Path(folder).mkdir(parents=True, exist_ok=True)
    build(variant, arch, injection).export_to_c(str(folder), name, name)
    return Path(folder) / f"{name}.o"


def _kernel(variant: Variant, arch: str, injection: Injection) -> Any:
    arches = ARCHES_OF.get(variant.products, ARCHES)
    if arch not in arches:
        raise ValueError(f"variant.products is {variant.products!r}, which only {', '.join(arches)} has, not {arch}")
    if variant.products == "tcgen05":
        return _blackwell_kernel(variant, arch, injection)
    if variant.products == "wgmma" and variant.kind == "forward":
        from kernels.blocksparse.forward.hopper.kernel import HopperForward

        return HopperForward(variant, injection)
    if variant.kind == "forward":
        from kernels.blocksparse.forward.kernel import Forward

        return Forward(variant, injection)
    if variant.kind == "preprocess":
        from kernels.blocksparse.backward.preprocess import Preprocess

        return Preprocess(variant, injection)
    if variant.kind == "dq":
        from kernels.blocksparse.dq_by_queries.kernel import DQByQueries

        return DQByQueries(variant, injection)
    if variant.kind == "backward":
        return _backward_kernel(variant, arch, injection)
    from kernels.blocksparse.backward.postprocess import Postprocess

    return Postprocess(variant, arch, injection)


def _backward_kernel(variant: Variant, arch: str, injection: Injection) -> Any:
    from kernels.blocksparse.backward import Backward
    from kernels.blocksparse.backward.tiling import choose_tiling, default_step_groups

    if dict(variant.tuning).get("step_groups", default_step_groups(variant)):
        from kernels.blocksparse.backward.transposed.dkdv_kernel import KeyGradients

        return KeyGradients(variant, arch, injection)
    tiling = choose_tiling(variant, arch)
    if tiling.exchanges:
        from kernels.blocksparse.backward.by_gradient.exchanging_kernel import ExchangingGroups

        return ExchangingGroups(variant, arch, injection)
    if tiling.by_gradient:
        from kernels.blocksparse.backward.by_gradient.kernel import GradientGroups

        return GradientGroups(variant, arch, injection)
    if tiling.runs:
        from kernels.blocksparse.backward.transposed.runs_kernel import RunsBackward

        return RunsBackward(variant, arch, injection)
    if tiling.transposed:
        from kernels.blocksparse.backward.transposed.kernel import TransposedBackward

        return TransposedBackward(variant, arch, injection)
    return Backward(variant, arch, injection)


def _blackwell_kernel(variant: Variant, arch: str, injection: Injection) -> Any:
    if variant.kind == "forward":
        from kernels.blocksparse.forward.blackwell.kernel import BlackwellForward

        return BlackwellForward(variant, arch, injection)
    if variant.kind == "backward" and variant.tile_n == PAIR_KEYS:
        from kernels.blocksparse.backward.blackwell.pairs.kernel import PairBackward

        return PairBackward(variant, arch, injection)
    if variant.kind == "backward":
        from kernels.blocksparse.backward.blackwell.kernel import BlackwellBackward

        return BlackwellBackward(variant, arch, injection)
    from kernels.blocksparse.backward.blackwell.postprocess import BlackwellPostprocess

    return BlackwellPostprocess(variant, arch, injection)


def fake_arguments(variant: Variant) -> list[Any]:
    """Null pointers and zeros of the kernel's signature, in its order, without the stream."""
    return [argument(kind, 0, variant) for _, kind in ARGUMENTS[variant.kind]]


def argument(kind: str, value: int | float, variant: Variant) -> Any:
    """One argument of a compiled function: `value` is an address for the pointer kinds ("*…"), else the number."""
    if not kind.startswith("*"):
        return _SCALARS[kind](value)
    if kind in (DATA, GRADIENT):
        dtype = DTYPES["float32" if kind == GRADIENT and variant.float32 else variant.dtype]
        return make_ptr(dtype, int(value), cute.AddressSpace.gmem, assumed_align=16)
    dtype = DTYPES[kind[1:]]
    return make_ptr(dtype, int(value), cute.AddressSpace.gmem, assumed_align=dtype.width // 8)
