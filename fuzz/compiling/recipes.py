"""Recipes for the bundled kernels: from a Build's options (JSON) to their own build functions."""

from __future__ import annotations

from typing import Any


def blocksparse(options: dict[str, Any], arch: str) -> Any:
    """kernels.blocksparse: the fields of a Variant, and 'planted', the name of a mutant's injections or ''."""
    from kernels.blocksparse.compile.build import build
    from kernels.blocksparse.launch.backward import injection_of
    from kernels.blocksparse.spec.variant import NO_INJECTION, Variant

    fields = dict(options)
    planted = fields.pop("planted", "")
    fields["tuning"] = tuple((name, value) for name, value in fields.get("tuning", ()))
    variant, injection = Variant(**fields), NO_INJECTION
    if planted:
        from kernels.mutants.blocksparse.table import injections_for

        both = injections_for(planted)
        injection = both.forward if variant.kind == "forward" else injection_of(both.backward, variant.kind)
    return build(variant, arch, injection)
