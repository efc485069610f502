"""The passes, in the order in which they run: what a run gains for what it costs.

Bold cuts stand first, because most failures need little of their case. Then come the options, whose absence makes all
that follows cheaper, then what reuses a compiled kernel (sequences, heads, lengths, the mask's cells, the data), and
last what needs another one (options of the target, dims, dtype). The table is walked again until nothing is accepted;
candidates seen before cost nothing.
"""

from __future__ import annotations

from fuzz.minimize import masks, native_sparse, options, shape
from fuzz.minimize.kinds import Row

PASSES: tuple[Row, ...] = (
    Row("bold", options.bold, recompiles=True),
    Row("features", options.features, recompiles=True, gets_results=True),
    Row("relations", options.relations),
    Row("one sequence", shape.one_sequence),
    Row("sequences", shape.sequences, gets_results=True),
    Row("heads", shape.heads),
    Row("lengths", shape.lengths),
    Row("sparse sizes", native_sparse.sizes, recompiles=True),
    Row("canonical mask", masks.canonical),
    Row("simpler mask", masks.simpler),
    Row("mask rows", masks.rows, gets_results=True),
    Row("mask columns", masks.columns, gets_results=True),
    Row("bounds", masks.bounds, gets_results=True),
    Row("mask cells", masks.cells, gets_results=True),
    Row("mask text", masks.trim),
    Row("rows with keys", masks.rows_with_keys),
    Row("storage", options.storage),
    Row("data", options.data),
    Row("scores", options.scores, recompiles=True),
    Row("bias", options.bias, recompiles=True),
    Row("variant", options.variant, recompiles=True),
    Row("dims", shape.dims, recompiles=True),
    Row("dtype", options.dtype, recompiles=True),
    Row("finer lengths", shape.lengths_finer),
    Row("tokens", masks.as_tokens),
)
