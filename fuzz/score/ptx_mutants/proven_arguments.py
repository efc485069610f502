"""Further arguments for mutants of Hopper's kernels by wgmma, each with a proof that is read off the kernel's text. See
equivalence.py."""

from __future__ import annotations

from fuzz.score.ptx_mutants.argument import Argument
from fuzz.score.ptx_mutants.awaited_copies import copies_are_awaited_next
from fuzz.score.ptx_mutants.chosen_threads import may_choose_another
from fuzz.score.ptx_mutants.dropped_bits import low_bits_are_dropped
from fuzz.score.ptx_mutants.first_steps import may_follow_nothing, update_is_the_same
from fuzz.score.ptx_mutants.possible_values import answer_is_the_same, branch_is_decided, value_is_the_same
from fuzz.score.ptx_mutants.product_waits import barrier_after_products_is_idle
from fuzz.score.ptx_mutants.register_flow import asks_in_clusters, asks_of_pair, holds_already, is_cache_hint
from fuzz.score.ptx_mutants.reloaded_tiles import ring_is_free_at_first
from fuzz.score.ptx_mutants.thread_values import is_the_same, sign_is_unread
from fuzz.score.ptx_mutants.tile_numbers import number_was_below
from fuzz.score.ptx_mutants.unshared_mbarriers import is_seen_at_barrier
from fuzz.score.ptx_mutants.whole_tiles import may_be_cut_off

_WGMMA = ("blocksparse.wgmma",)

PROVEN_ARGUMENTS = (
    Argument(
        "whatever the thread's number",
        "The thread's number alone decides the value. For every number that there is, what other instructions make of "
        "it is the same with the change (thread_values.py computes all of them).",
        ("compare_flipped", "compare_shifted", "bound_shifted", "immediate_off_by_one", "operands_swapped",
         "operation_replaced", "sign_changed"),
        r"\w+\.",
        "same_bits",
        targets=_WGMMA,
        compared=is_the_same,
    ),
    Argument(
        "bits that nobody reads",
        "A word is shifted right by an amount that the thread's number decides, and every instruction that reads the "
        "result masks it: none of the masks has a bit that the sign may fill (thread_values.py).",
        ("sign_changed",),
        r"shr\.u32 ",
        "same_bits",
        after=r"^shr\.s32 ",
        targets=_WGMMA,
        proof=sign_is_unread,
    ),
    Argument(
        "no order in clusters",
        "Whether sequences have an order is asked of the pointer to their numbers, not of that to where each begins. "
        "They are given together, or both are null (`order_values` of launch/by_length.py); and CTAs run in clusters "
        "for padded sequences alone, which have no order (`is_full` of launch/forward.py).",
        ("parameter_wrong",),
        r"ld\.param\.b64 %rd\d+, \[\w+_param_63\];",
        "same_values",
        kinds=("forward",),
        configs="_full_",
        after=r"_param_62\];$",
        targets=_WGMMA,
        proof=asks_in_clusters,
    ),
    Argument(
        "it holds that already",
        "A register is given a constant that it holds on every way that leads there (register_flow.py).",
        ("instruction_dropped",),
        r"mov\.b32 ",
        "same_values",
        targets=_WGMMA,
        proof=holds_already,
    ),
    Argument(
        "awaited with the next copies",
        "The copies of a tile that is cut off are awaited with the next ones of the same warp, which it makes whenever "
        "it makes these. Whoever waits for these waits for the next ones first (awaited_copies.py).",
        ("commit_dropped", "wait_dropped", "wait_weakened"),
        r"cp\.async\.(commit_group|wait_group 0);",
        "same_bits",
        kinds=("backward",),
        targets=_WGMMA,
        proof=copies_are_awaited_next,
    ),
    Argument(
        "free since the tile before",
        "A wait for a ring's buffer at a tile's first step. The warps have waited for the tile's keys, which were "
        "loaded after all of them were done with the tile before, and with the ring's buffers (reloaded_tiles.py).",
        ("phase_not_awaited",),
        r"mbarrier\.try_wait\.parity",
        "same_bits",
        kinds=("backward",),
        targets=_WGMMA,
        proof=ring_is_free_at_first,
    ),
    Argument(
        "a number was below it",
        "Whether there are more tiles than CTAs is asked where a tile without rows is passed over. On every way there "
        "the tile's number, which a CTA took, was found below the number of tiles, and it is the number of CTAs or "
        "more (tile_numbers.py).",
        ("compare_shifted", "guarded_dropped"),
        r"(setp\.ge\.s32 %p\d+, %r\d+, %r\d+;|@%p\d+ bra )",
        "same_values",
        kinds=("forward",),
        after=r"^(setp\.gt\.s32 .*)?;$",
        targets=_WGMMA,
        proof=number_was_below,
    ),
    Argument(
        "a whole tile, row by row",
        "A tile with no row past the end is loaded by the lanes of a warp, as one that is cut off, and not by a bulk "
        "copy. The same rows come to the same place, and the warp arrives once at the same mbarrier (whole_tiles.py).",
        ("compare_shifted", "guard_dropped"),
        r"(setp\.lt\.s32 %p\d+, %r\d+, \d+;|@%p\d+ bra )",
        "same_bits",
        after=r"^(setp\.le\.s32|bra) ",
        targets=_WGMMA,
        proof=may_be_cut_off,
    ),
    Argument(
        "a cache's policy",
        "An operand of one bulk copy that says which lines the cache keeps. PTX: a hint for performance, by which no "
        "value changes.",
        ("immediate_off_by_one",),
        r"mov\.b64 %rd\d+, 0;",
        "same_bits",
        targets=_WGMMA,
        proof=is_cache_hint,
    ),
    Argument(
        "a first step without scores",
        "In a tile's first step references and sums follow the maxima, though no row is behind: each maximum is minus "
        "infinity, and leaves them as they are, or not a number, as the row's answer is then (first_steps.py).",
        ("guarded_dropped",),
        r"@%p\d+ bra ",
        "same_bits",
        kinds=("forward",),
        targets=_WGMMA,
        proof=may_follow_nothing,
    ),
    Argument(
        "an update of nothing",
        "In a tile's first step sums are 0, and references minus infinity. What the changed update makes of them is "
        "the same for maxima that are finite or minus infinity, or nobody reads it; of other maxima the row's answer "
        "is not a number anyway (first_steps.py).",
        ("guard_dropped", "guarded_dropped", "guard_negated", "compare_flipped", "compare_shifted", "bound_shifted",
         "immediate_off_by_one", "instruction_dropped", "operands_swapped", "operation_replaced", "sign_changed"),
        r"",
        "same_bits",
        kinds=("forward",),
        targets=_WGMMA,
        compared=update_is_the_same,
    ),
    Argument(
        "seen at the CTA's barrier",
        "fence.mbarrier_init makes mbarrier.init visible to the cluster. All threads of it, or of a CTA where CTAs "
        "form none, meet at a barrier between mbarrier.init and whatever else uses an mbarrier, and an arrival at that "
        "of a cluster is not relaxed (unshared_mbarriers.py). Sources "
        "differ about the bulk copies that arrive at it: CUDA's programming guide has a fence of the async proxy, and "
        "audits ask for it; Triton has this fence for clusters of several CTAs alone, and a fork of it has taken the "
        "fence of the async proxy out as not needed (facebookexperimental/triton, pull request 1553).",
        ("barrier_dropped",),
        r"fence\.mbarrier_init\.release\.cluster;",
        "same_bits",
        targets=_WGMMA,
        proof=is_seen_at_barrier,
    ),
    Argument(
        "bits that are never set",
        "The value is the same with the change, but for bits that no instruction sets: of an address below its "
        "alignment, of a number shifted to the left, or outside a mask (possible_values.py).",
        ("immediate_off_by_one", "operation_replaced"),
        r"(and|xor)\.",
        "same_values",
        targets=_WGMMA,
        compared=value_is_the_same,
    ),
    Argument(
        "bits that are dropped",
        "A constant is added to an address whose lowest bits are 0, and every instruction that reads the sum shifts it "
        "right: the bits in which it differs are dropped, and no other ones differ (dropped_bits.py).",
        ("immediate_off_by_one",),
        r"add\.[su]32 ",
        "same_bits",
        targets=_WGMMA,
        compared=low_bits_are_dropped,
    ),
    Argument(
        "never that number",
        "A comparison with a constant has another answer for numbers that the register never has there: they have a "
        "bit that no instruction sets, or a branch on every way there has found otherwise (possible_values.py).",
        ("compare_flipped", "compare_shifted", "bound_shifted"),
        r"setp\.",
        "same_values",
        targets=_WGMMA,
        compared=answer_is_the_same,
    ),
    Argument(
        "decided before",
        "A branch by a comparison with a constant that has one answer for all numbers that the register may have there "
        "(possible_values.py).",
        ("guard_dropped", "guarded_dropped"),
        r"@!?%p\d+ bra ",
        "same_values",
        targets=_WGMMA,
        compared=branch_is_decided,
    ),
    Argument(
        "another thread of the warp",
        "One thread of a warp does something for all of its lanes, which meet at a barrier behind it. Another one of "
        "the warp has the same registers there, and nobody reads what it leaves in its own (chosen_threads.py).",
        ("bound_shifted",),
        r"setp\.ne\.b32 %p\d+, %r\d+, \d+;",
        "same_bits",
        targets=_WGMMA,
        compared=may_choose_another,
    ),
    Argument(
        "the lanes have waited for products",
        "All lanes wait for their products at a wgmma.wait_group right before, and since they met at a barrier there "
        "is no access to memory but by products: nothing is left for this barrier to order (product_waits.py).",
        ("barrier_dropped",),
        r"bar\.warp\.sync",
        "same_bits",
        targets=_WGMMA,
        proof=barrier_after_products_is_idle,
    ),
    Argument(
        "both or neither",
        "Where rows of sequences begin and how many each has are two tensors that are given together, or not at all "
        "(`rows_values` of launch/forward.py), and so are the numbers of sequences in an order and where each begins "
        "(`order_values` of launch/by_length.py): whether one pointer is null is whether the other one is.",
        ("parameter_wrong",),
        r"ld\.param\.b64 %rd\d+, \[\w+_param_\d+\];",
        "same_bits",
        kinds=("forward",),
        targets=_WGMMA,
        compared=asks_of_pair((25, 26), (28, 29), (62, 63)),
    ),
)  # fmt: skip
