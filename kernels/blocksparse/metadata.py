"""The metadata of block-sparse attention, in one place to import from.

building     causal, window, band (their parameters alone) · documents, ranges, intervals (key intervals per row) ·
             from_mask, from_predicate (any token mask, as bits) · from_block_mask (FlexAttention's) · from_grid (whole
             blocks) · dense
data         BlockSparse and its parts; BlockList.padded, BlockList.csr, to_padded, to_csr between layouts
completing   with_backward (transposed lists), with_order (ranks of a schedule), least_blocking (a schedule computed
             ahead)
checking     check_shapes, check_contents
"""

from kernels.blocksparse.lists.bands import band, causal, window
from kernels.blocksparse.lists.builder import dense
from kernels.blocksparse.lists.from_block_mask import from_block_mask
from kernels.blocksparse.lists.from_mask import from_grid, from_mask, from_predicate
from kernels.blocksparse.lists.intervals import documents, intervals
from kernels.blocksparse.lists.ranges import range_bounds, ranges
from kernels.blocksparse.lists.schedule import ASCENDING, DESCENDING, Schedule, permutation
from kernels.blocksparse.lists.transpose import transpose, with_backward
from kernels.blocksparse.lists.types import (
    Band,
    Bits,
    BlockList,
    BlockLists,
    BlockSparse,
    Intervals,
    WriteOrder,
    spread,
)
from kernels.blocksparse.lists.validate import Sizes, check_contents, check_shapes
from kernels.blocksparse.lists.write_order import with_order, write_order
from kernels.blocksparse.planner.planner import Costs, Plan, estimate, least_blocking

__all__ = [
    "ASCENDING",
    "DESCENDING",
    "Band",
    "Bits",
    "BlockList",
    "BlockLists",
    "BlockSparse",
    "Costs",
    "Intervals",
    "Plan",
    "Schedule",
    "Sizes",
    "WriteOrder",
    "band",
    "causal",
    "check_contents",
    "check_shapes",
    "dense",
    "documents",
    "estimate",
    "from_block_mask",
    "from_grid",
    "from_mask",
    "from_predicate",
    "intervals",
    "least_blocking",
    "permutation",
    "range_bounds",
    "ranges",
    "spread",
    "transpose",
    "window",
    "with_backward",
    "with_order",
    "write_order",
]
