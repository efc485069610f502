"""Block lists of the branches, each made by one Triton kernel; backward lists of chosen blocks by two and a sort.

spans the window and all compressed blocks, from lengths alone · chosen blocks and groups that tiles of queries chose ·
transposed those by keys · build the lists of a branch as `BlockSparse`. The same lists, made by tensor operations, are
`bands.band`, `pooled.pooled`, `compact.selected` and `compact.pooled_groups` of kernels.blocksparse.lists.
"""
