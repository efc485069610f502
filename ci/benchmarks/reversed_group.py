"""A causal launch with ordered adds as a picture: which SM has which CTA by the planner's model, with the last group as
the others, and reversed.

    python ci/benchmarks/reversed_group.py --out docs/images/reversed_group.png

8,192 tokens, tiles of 128 keys, four of 16 heads concurrent. No GPU is needed, and none is measured.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from kernels.blocksparse.planner.group_split import SLOTS
from kernels.blocksparse.planner.reversed_group import LAG, modelled_ctas

HEADS, TILES, PAIRS = 16, 64, 4
COLOURS = ("#56B4E9", "#0072B2", "#E69F00", "#D55E00")  # of groups; the colour-blind can tell them apart


def main() -> None:
    """Draws it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "attnfuzz"
    from matplotlib import pyplot

    figure, both = pyplot.subplots(2, 1, figsize=(9, 5.6), sharex=True, layout="constrained")
    for axes, reverse in zip(both, (False, True), strict=True):
        ctas = list(modelled_ctas(HEADS, TILES, TILES, 1, PAIRS, slots=SLOTS, lag=LAG, reverse=reverse))
        end = max(cta.end for cta in ctas)
        idle = 1 - sum(cta.end - cta.begin for cta in ctas) / (SLOTS * end)
        for group, colour in enumerate(COLOURS):
            of_group = [cta for cta in ctas if cta.group == group]
            axes.barh(
                [cta.slot for cta in of_group],
                [cta.end - cta.begin for cta in of_group],
                left=[cta.begin for cta in of_group],
                height=1.0,
                color=colour,
                edgecolor="white",
                linewidth=0.15,
                label=f"group {group + 1}",
            )
        axes.axvline(end, color="black", linewidth=0.8)
        how = "the last group reversed" if reverse else "all groups from the shortest row to the longest"
        axes.set_title(f"{how}: {end:.0f} blocks, SMs idle for {100 * idle:.0f} % of the time", loc="left", fontsize=10)
        axes.set_ylabel("SM")
        axes.set_ylim(0, SLOTS)
        axes.spines[["top", "right"]].set_visible(False)
    both[1].set_xlabel("time, in blocks of 128 queries and 128 keys")
    both[1].legend(fontsize=8, frameon=False, loc="lower left", ncols=4, bbox_to_anchor=(0.45, -0.32))
    figure.savefig(options.out, metadata={"Date": None} if options.out.suffix == ".svg" else None, dpi=130)


if __name__ == "__main__":
    main()
