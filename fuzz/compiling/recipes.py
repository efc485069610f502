"""Recipes for the bundled kernels: from a Build's options (JSON) to their own build functions."""

from __future__ import annotations

from typing import Any


def blocksparse(options: dict[str, Any], arch: str) -> Any:
    """kernels.blocksparse: the fields of a Variant, and 'planted', the name of a planted bug or ''."""
    from kernels.blocksparse.compile import build
    from kernels.blocksparse.variant import NO_SEAMS, Variant

    fields = dict(options)
    planted = fields.pop("planted", "")
    fields["tuning"] = tuple((name, value) for name, value in fields.get("tuning", ()))
    seams = NO_SEAMS
    if planted:
        from kernels.mutants.blocksparse import SEAMS

        seams = SEAMS[planted]
    return build(Variant(**fields), arch, seams)
