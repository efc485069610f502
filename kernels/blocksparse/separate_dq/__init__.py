"""The backward pass of scattered lists in two kernels: dQ by tiles of queries, dK and dV by tiles of keys.

NOTE [separate dQ] The backward kernel adds to dQ in memory, 64 KB for each pair of 128 queries and 64 keys, beside the
64 KB of Q and dO that it reads. Where tiles of keys list scattered tiles of queries, all of that comes from memory.
Here a pair costs the dQ kernel 32 KB of K and V, which all query heads of a KV head share, and the backward kernel,
without dQ, 64 KB: for seven products instead of five. No sums of dQ lie in memory, nothing is added there, and no CTA
waits for a semaphore: gradients are bitwise the same in every run.

queries/ has the dQ kernel, keys/ a backward kernel of its own for tiles of 64 keys at head dim 128 without a soft cap;
elsewhere that of backward/ leaves dQ out (`Variant.separate_dq`).
"""
