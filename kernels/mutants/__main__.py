"""`python -m kernels.mutants` writes what is made from the mutants: README.md, their table, and names.py, by which
targets list them without importing a kernel. `--check` writes nothing, and fails where a file is not up to date."""

from __future__ import annotations

import sys
from pathlib import Path

from kernels.mutants.mutant import Mutant

HERE = Path(__file__).parent
_HEAD = """# Mutants

Each is a few lines at one injection point of a kernel, or of what its host side prepares; none is in a kernel's normal
path. `attnfuzz run --target 'sdpa!kv_head_modulo'` looks for one. The files are in `sdpa/`, `dynamic_mask/`, `nsa/`
and `blocksparse/`; this table is made from them by `python -m kernels.mutants`.

flash-dmattn, whose bugs `dynamic_mask` repeats, is CUDA C++ with shared buffers of its own. Triton makes and shares the
buffers of `kernels.dynamic_mask` itself, so some of those bugs have no step of the source that could be replaced:

- a barrier that is missing before a buffer is used again: `next_keys_copied_early` and `next_queries_copied_early` drop
  such barriers from the PTX that Triton has made;
- a flag of each thread, which takes warps past barriers at which others wait: `tiles_of_each_warp` reads its thread's
  number in inline PTX; `flag_of_the_first_warp` is what a kernel without barriers in the branch would do;
- copies of a mask and of a bias past the last key: both go through one predicate here, which `mask_tail_read` drops for
  the mask; values that are not cleared are `sdpa!value_tail_not_cleared`.

"""


def all_mutants() -> dict[str, dict[str, Mutant]]:
    """Mutants of all kernels, by kernel and name."""
    from kernels.mutants.blocksparse import table as blocksparse
    from kernels.mutants.dynamic_mask import table as dynamic_mask
    from kernels.mutants.nsa import table as nsa
    from kernels.mutants.sdpa import table as sdpa

    tables = {"sdpa": sdpa, "dynamic_mask": dynamic_mask, "nsa": nsa, "blocksparse": blocksparse}
    return {name: dict(table.MUTANTS) for name, table in tables.items()}


def table(bugs: dict[str, dict[str, Mutant]]) -> str:
    """README.md."""
    lines = [_HEAD + f"{sum(map(len, bugs.values()))} mutants."]
    for kernel, mutants in bugs.items():
        lines += ["", f"## kernels.{kernel}: {len(mutants)}", ""]
        lines += ["| target | what is broken | injection point | source of the idea |", "| --- | --- | --- | --- |"]
        for mutant in mutants.values():
            cells = (f"`{kernel}!{mutant.name}`", mutant.summary, f"`{mutant.point}`", mutant.source)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def names(bugs: dict[str, dict[str, Mutant]]) -> str:
    """names.py."""
    lines = ['"""Names of the mutants, for code that must not import a kernel: made by `python -m kernels.mutants`."""']
    for kernel, mutants in bugs.items():
        lines += ["", f"{kernel.upper()} = (", *(f'    "{name}",' for name in mutants), ")"]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Writes both files, or with --check names those that are not up to date."""
    bugs, old = all_mutants(), []
    for name, text in (("README.md", table(bugs)), ("names.py", names(bugs))):
        path = HERE / name
        if path.is_file() and path.read_text() == text:
            continue
        old.append(name)
        if "--check" not in arguments:
            path.write_text(text)
    if old and "--check" in arguments:
        print(f"not up to date: {', '.join(old)}; run python -m kernels.mutants", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
