"""The scoreboard as a picture: the share of the mutants that is not yet found, against the cases run."""

from __future__ import annotations

from pathlib import Path

from fuzz.score.scoreboard import Scoreboard, survival
from fuzz.score.trial import OURS

# (generator, rule, label, colour, dashes): colours that the colour-blind can tell apart
LINES: tuple[tuple[str, str, str, str, tuple[int, ...]], ...] = (
    ("ours", OURS, "attnfuzz", "#0072B2", ()),
    ("uniform", OURS, "our oracles, uniform cases", "#56B4E9", (5, 2)),
    ("ours", "flash-attention", "FlashAttention's rule, our cases", "#D55E00", ()),
    ("uniform", "flash-attention", "FlashAttention's rule, uniform cases", "#D55E00", (5, 2)),
    ("ours", "flag-gems", "FlagGems' rule and inputs, our cases", "#009E73", ()),
    ("ours", "nsa", "NSA's rule, our cases", "#CC79A7", ()),
    ("ours", "flash-dmattn", "flash-dmattn's rule, our cases", "#7F7F7F", ()),
)


def plot(scores: Scoreboard, path: Path) -> None:
    """Writes the picture (SVG, PNG or PDF by the name's end). Raises ModuleNotFoundError without matplotlib, ValueError
    for another ending."""
    if path.suffix not in (".svg", ".png", ".pdf"):
        raise ValueError(f"--plot: needs a name that ends in .svg, .png or .pdf, got {str(path)!r}")
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "attnfuzz"  # the same board gives the same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.8), layout="constrained")
    for generator, rule, label, colour, dashes in LINES:
        x, y = survival(scores, generator, rule)
        if not x:
            continue
        percent = [100 * share for share in y]
        caption = f"{label}: {percent[-1]:.0f} % left after {x[-1]} cases"  # other rules look at fewer
        (line,) = axes.step([0.8, *x[1:]], percent, where="post", color=colour, label=caption)
        line.set_linewidth(2.6 if (generator, rule) == ("ours", OURS) else 1.5)
        if dashes:
            line.set_dashes(dashes)
    axes.set_xscale("log")
    axes.set_xlim(0.8, None)
    axes.set_ylim(0, 101)
    ticks = [n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500) if n <= scores.settings.cases]
    axes.set_xticks(ticks, [str(n) for n in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("cases run")
    axes.set_ylabel("mutants not yet found, %")
    axes.set_title(_title(scores), loc="left", fontsize=11)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="upper right")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=150)
    pyplot.close(figure)


def _title(scores: Scoreboard) -> str:
    """Number of mutants, and from how many seeds: those that were tried, which a score that was cut short has fewer
    of."""
    trials = [bug.trials for bug in scores.bugs if bug.trials] or [0]
    seeds = f"{min(trials)}" if min(trials) == max(trials) else f"{min(trials)} to {max(trials)}"
    title = f"{scores.mutants} mutants, {seeds} seed{'s' * (max(trials) != 1)} each"
    others = {
        len(seen.cases) for bug in scores.bugs for seen in bug.seen if (seen.generator, seen.rule) != ("ours", OURS)
    }
    return title + (f"; other lines: {max(others)}" if others else "")
