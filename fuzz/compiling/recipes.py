"""Recipes for the bundled kernels: from a Build's options (JSON) to their own build functions."""

from __future__ import annotations

from typing import Any


def preload(options: dict[str, Any]) -> None:
    """Imports what a build with these options needs, in the compile server, from which builds are forked."""
    import kernels.blocksparse.backward
    import kernels.blocksparse.backward.postprocess
    import kernels.blocksparse.backward.preprocess
    import kernels.blocksparse.compile.build
    import kernels.blocksparse.forward.hopper.kernel
    import kernels.blocksparse.forward.kernel

    if options.get("mutant"):
        import kernels.mutants.blocksparse.table  # noqa: F401


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
