"""The table of the block-sparse kernels beside FlashAttention-4, cuDNN and FlashInfer: blocksparse_beside_h200.json."""

from __future__ import annotations

from typing import Any

from docs.generate.results import load

OURS, THEIRS, CUDNN, FLASHINFER = "ours", "FlashAttention-4", "cuDNN", "FlashInfer"


def table() -> str:
    """One line a problem, TFLOP/s; the ratio is that to FlashAttention-4."""
    lines = [
        "| problem | forward: ours / FA4 / cuDNN | ratio | backward: ours / FA4 / cuDNN | ratio "
        "| deterministic over atomic: ours / FA4 |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in sorted(load("blocksparse_beside_h200")["rows"], key=place):
        if "trouble" in row:
            lines.append(f"| {row['entry']} | {row['trouble']} | | | | |")
            continue
        cells = [problem(row)]
        for way in ("forward", "backward"):
            rates = row["tflops"][way]
            found = " / ".join(f"{rates[name]:.0f}" if name in rates else "-" for name in (OURS, THEIRS, CUDNN))
            cells.append(found + (f", FlashInfer {rates[FLASHINFER]:.0f}" if FLASHINFER in rates else ""))
            cells.append(f"{rates[OURS] / rates[THEIRS]:.2f}" if THEIRS in rates else "")
        ordered = [over_atomic(row["ms"]["backward"], name) for name in (OURS, THEIRS)]
        lines.append("| " + " | ".join([*cells, " / ".join(ordered)]) + " |")
    return "\n".join(lines)


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    """The place of a row in the table; rows come in the order in which they were measured."""
    if "trouble" in row:
        return (3, row["entry"])
    special = row["packed"] or row["mask"].startswith("top")
    return (row["dim"] > 128, special, row["dim"], row["mask"], row["tokens"], row["heads_kv"])


def problem(row: dict[str, Any]) -> str:
    """A row's problem in words."""
    mask = row["mask"]
    if mask == "window":
        mask = f"window 2,048 of {row['tokens']:,}"
    elif mask.endswith("%"):
        mask = f"random blocks, {mask.removesuffix('%')} % of {row['tokens']:,}"
    elif mask.startswith("top"):
        mask = f"{mask.split()[1]} random blocks of 64 × 64 a row of {row['tokens']:,}"
    else:
        mask = f"{mask} {row['tokens']:,}"
    batch = f", B {row['batch']}" if row["batch"] > 1 else ""
    heads = "" if row["heads_q"] == row["heads_kv"] == 16 else f", {row['heads_q']} / {row['heads_kv']} heads"
    return mask + batch + (" packed" if row["packed"] else "") + f", D {row['dim']}{heads}"


def over_atomic(ms: dict[str, float], name: str) -> str:
    """The deterministic backward pass's time over the atomic one's."""
    return f"{ms[f'{name} deterministic'] / ms[name]:.2f}" if f"{name} deterministic" in ms else "-"
