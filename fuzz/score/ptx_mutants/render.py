"""A PtxScore for users: tables in Markdown."""

from __future__ import annotations

from fuzz.score.ptx_mutants.results import PtxScore, Share


def table(score: PtxScore) -> str:
    """Tables by operator, by kernel, by what found them, and a line of the whole."""
    rows = ["| operator | bugs | found | equivalent | missed | not reached |", "| --- | --- | --- | --- | --- | --- |"]
    rows += [_row(share) for share in score.operators]
    rows += ["", rows[0].replace("operator", "kernel"), rows[1], *(_row(share) for share in score.kinds)]
    rows += ["", "| found by | bugs |", "| --- | --- |", *(f"| {name} | {n} |" for name, n in score.checks.items())]
    return "\n".join([*rows, "", line(score)])


def line(score: PtxScore) -> str:
    """The whole score in a sentence."""
    real = score.found + score.missed
    return (
        f"{score.found} of {real} bugs that are not equivalent were found ({score.rate:.1%}), after "
        f"{score.median_cases:g} cases in the median and {score.worst_cases} at worst; {score.equivalent} are "
        f"equivalent, no case came to {score.not_reached}. The cases after the list find {score.late} more "
        f"({score.late_rate:.1%} of those that are then reached). {score.seconds:.0f} s in all."
    )


def _row(share: Share) -> str:
    name = share.name.replace("_", " ")
    return f"| {name} | {share.bugs} | {share.found} | {share.equivalent} | {share.missed} | {share.not_reached} |"
