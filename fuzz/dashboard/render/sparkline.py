"""The nights of a signature as bars, each as high as the share of its target's cases that failed with it."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

BAR, GAP, HEIGHT = 4, 1, 22
LEAST = 3.0  # pixels of a bar that is not 0


def sparkline(nights: Sequence[tuple[str, float]]) -> Markup:
    """nights: name and share, the oldest first. A night without a failure is a dot on the ground line."""
    if not nights:
        return Markup('<span class="quiet">–</span>')
    most = max(share for _, share in nights) or 1.0
    bars = []
    for place, (night, share) in enumerate(nights):
        high = LEAST + (HEIGHT - LEAST) * share / most if share else 1.0
        bars.append(
            Markup(
                '<rect class="{}" x="{}" y="{:.1f}" width="{}" height="{:.1f}"><title>{}: {:.0%}</title></rect>'
            ).format("hit" if share else "miss", place * (BAR + GAP), HEIGHT - high, BAR, high, night, share)
        )
    hit = sum(share > 0 for _, share in nights)
    wide = len(nights) * (BAR + GAP)
    title = f"met in {hit} of {len(nights)} nights that ran its target, in at most {most:.0%} of their cases"
    return Markup('<svg class="spark" role="img" width="{}" height="{}"><title>{}</title>{}</svg>').format(
        wide, HEIGHT, title, Markup("").join(bars)
    )
