# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""Numbers that CTAs take in the order in which they ask."""

from cutlass import Int32, cute


@cute.jit
def take_tile_number(counter: cute.Pointer) -> Int32:
    """The next number of a counter in global memory, for one thread."""
    return Int32(cute.arch.atomic_add(counter, Int32(1), sem="relaxed", scope="gpu"))
