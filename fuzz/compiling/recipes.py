"""Recipes for the bundled kernels: from a Build's options (JSON) to their own build functions."""

from __future__ import annotations

from typing import Any


def blocksparse(options: dict[str, Any], arch: str) -> Any:
    """kernels.blocksparse: the fields of a Variant, and 'planted', the name of a set of seams or ''."""
    from kernels.blocksparse.compile.build import build
    from kernels.blocksparse.launch.backward import seams_of
    from kernels.blocksparse.spec.variant import NO_SEAMS, Variant

    fields = dict(options)
    planted = fields.pop("planted", "")
    fields["tuning"] = tuple((name, value) for name, value in fields.get("tuning", ()))
    variant, seams = Variant(**fields), NO_SEAMS
    if planted:
        from kernels.mutants.blocksparse.table import seams_for

        both = seams_for(planted)
        seams = both.forward if variant.kind == "forward" else seams_of(both.backward, variant.kind)
    return build(variant, arch, seams)
