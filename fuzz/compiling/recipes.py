"""Recipes for the bundled kernels: from a Build's options (JSON) to their own build functions."""

from __future__ import annotations

from importlib import import_module
from typing import Any

MODULES = tuple(
    f"kernels.blocksparse.{name}"
    for name in (
        "backward",
        "backward.postprocess",
        "backward.preprocess",
        "backward.transposed.dkdv_kernel",
        "backward.transposed.kernel",
        "compile.build",
        "dq_by_queries.kernel",
        "forward.hopper.kernel",
        "forward.kernel",
    )
)
MUTANTS = ("kernels.mutants.blocksparse.table",)


def preload(options: dict[str, Any]) -> None:
    """Imports the modules that a build with these options needs: in the compile server, from which it is forked."""
    for name in MODULES + MUTANTS * bool(options.get("mutant")):
        import_module(name)


def blocksparse(options: dict[str, Any], arch: str) -> Any:
    """kernels.blocksparse: the fields of a Variant, and 'mutant', the name of a mutant's injections or ''."""
    from kernels.blocksparse.compile.build import build
    from kernels.blocksparse.spec.variant import NO_INJECTION, Variant

    fields = dict(options)
    mutant = fields.pop("mutant", "")
    fields["tuning"] = tuple((name, value) for name, value in fields.get("tuning", ()))
    variant, injection = Variant(**fields), NO_INJECTION
    if mutant:
        from kernels.mutants.blocksparse.table import injections_for

        both = injections_for(mutant)
        injection = both.forward if variant.kind == "forward" else both.backward.part(variant.kind)
    return build(variant, arch, injection)
