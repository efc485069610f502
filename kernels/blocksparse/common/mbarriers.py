# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The mbarriers of a kernel by names: one table says how many there are, and how many arrivals end a phase."""

import cutlass
from cutlass import cute

Table = dict[str, tuple[int, int]]  # name → (how many, arrivals of a phase), in the order in which they lie in memory


def barrier_count(table: Table) -> int:
    """The number of all mbarriers."""
    return sum(count for count, _ in table.values())


def addresses(first: cute.Pointer, table: Table) -> dict[str, cute.Pointer]:
    """The address of each mbarrier, or of the first of several. first: of all."""
    found, at = {}, 0
    for name, (count, _) in table.items():
        found[name] = first + at
        at += count
    return found


@cute.jit
def initialise(first: cute.Pointer, table: cutlass.Constexpr) -> None:
    """One thread of a CTA, before the CTA, or the cluster, synchronises."""
    arrivals = cutlass.const_expr([of_phase for count, of_phase in table.values() for _ in range(count)])
    for i in cutlass.range_constexpr(len(arrivals)):
        cute.arch.mbarrier_init(first + i, arrivals[i])
    cute.arch.mbarrier_init_fence()
