"""Mutants of the kernels of a separate dQ, which the backward pass of the selected branch launches on Hopper.

Only a Hopper GPU shows them through `kernels.nsa`; tests launch the kernels by themselves on the emulated GPU.
"""

from kernels.mutants.blocksparse.table import injections_for
from kernels.mutants.nsa.registration import register_mutant

register_mutant(
    "dq_statistics_exchanged",
    "Separate dQ of the selected branch, on Hopper: the two rows that a thread has of a product get each other's LSE "
    "and delta.",
    "FlashAttention-4 b3f1b6a5: a wrong index of LSE and delta",
    attention_backward=injections_for("blocksparse!dq_statistics_exchanged").backward,
)

register_mutant(
    "dq_tail_keys_not_masked",
    "Separate dQ of the selected branch, on Hopper: keys past the end, which are zeros, count with score 0: no number "
    "where all other scores are very low.",
    "HSTU block masks: a KV tile that is cut off at the end was called full",
    attention_backward=injections_for("blocksparse!dq_tail_keys_not_masked").backward,
)

register_mutant(
    "dq_keys_released_when_scored",
    "Separate dQ of the selected branch, on Hopper: a stage of K is loaded anew when the scores are there, while dQ's "
    "product is still to read it.",
    "invented, after FlashAttention-3's pipelines, in which each stage is read by one product",
    attention_backward=injections_for("blocksparse!dq_keys_released_when_scored").backward,
)

register_mutant(
    "dq_not_scaled",
    "Separate dQ of the selected branch, on Hopper: dQ lacks the scale that dK has.",
    "FlagGems SDPA backward: dk *= scale and dq *= ln 2, each on a line of its own",
    attention_backward=injections_for("blocksparse!dq_not_scaled").backward,
)

register_mutant(
    "queries_released_when_scored",
    "dK and dV of the selected branch, on Hopper: a stage of Q is loaded anew when the scores are there, while dK's "
    "product is still to read it.",
    "invented, after FlashAttention-3's pipelines, in which each stage is read by one product",
    attention_backward=injections_for("blocksparse!queries_released_when_scored").backward,
)

register_mutant(
    "sums_added_before_they_are_there",
    "dK and dV of the selected branch, on Hopper: a warpgroup adds the other's sums without the barrier that follows "
    "their writes.",
    "invented, after the barriers that FlashAttention's backward has before its epilogue",
    attention_backward=injections_for("blocksparse!sums_added_before_they_are_there").backward,
)
