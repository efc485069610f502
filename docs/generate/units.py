"""The table of what each pass keeps busy on Hopper: blocksparse_units_ncu.json."""

from __future__ import annotations

from docs.generate.results import load

UNITS = {"tensor": "tensor cores", "l1": "L1 and shared memory", "l2": "L2", "memory": "DRAM", "issue": "issue slots"}


def table() -> str:
    """One line a kernel; percent of the kernel's time, the busiest unit in bold."""
    lines = [
        "| pass, mask, head dim | kernel | GPU | ms | " + " | ".join(UNITS.values()) + " |",
        "| --- | --- | --- | --- |" + " --- |" * len(UNITS),
    ]
    for row in load("blocksparse_units_ncu")["rows"]:
        shares = row["percent"]
        busiest = max(shares, key=lambda unit: shares[unit])
        cells = [f"**{shares[unit]:.0f}**" if unit == busiest else f"{shares[unit]:.0f}" for unit in UNITS]
        head = f"{row['pass']}, {row['mask']}, {row['dim']} | {row['name']} | {row['gpu']} | {row['us'] / 1000:.2f}"
        lines.append(f"| {head} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
