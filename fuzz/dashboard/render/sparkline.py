"""The nights of a signature as bars, each as high as the share of its target's cases that failed with it."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

BAR, GAP, HEIGHT = 4, 1, 22
LEAST = 3  # pixels of a bar that is not 0


def sparkline(nights: Sequence[tuple[str, float]]) -> Markup:
    """nights: name and share, the oldest first. A night without a failure is a dot on the ground line."""
    if not nights:
        return Markup('<span class="quiet">–</span>')
    most = max(share for _, share in nights) or 1.0
    hits: list[str] = []
    misses: list[str] = []
    for place, (_, share) in enumerate(nights):
        high = round(LEAST + (HEIGHT - LEAST) * share / most) if share else 1
        (hits if share else misses).append(f"M{place * (BAR + GAP)} {HEIGHT}v-{high}h{BAR}v{high}z")
    title = f"met in {len(hits)} of {len(nights)} nights that ran its target, in at most {most:.0%} of their cases"
    return Markup(
        '<svg class="spark" role="img" width="{}" height="{}"><title>{}</title>'
        '<path class="hit" d="{}"/><path class="miss" d="{}"/></svg>'
    ).format(len(nights) * (BAR + GAP), HEIGHT, title, "".join(hits), "".join(misses))
