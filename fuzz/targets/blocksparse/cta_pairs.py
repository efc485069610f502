"""Lists for the backward kernel of pairs of CTAs, beside others: `variant={"products": "tcgen05", "paired": 256}`.

No session of `blocksparse` draws them: the target of ci/blocksparse_tcgen05.py does, and its mutants.
"""

from __future__ import annotations

from fuzz.core.case import Case
from fuzz.core.support import Rule
from fuzz.targets.blocksparse import two_calls
from fuzz.targets.blocksparse.block_lists import options_of
from kernels.blocksparse.spec.variant import backward_products, padded_dim

TARGET = "blocksparse.tcgen05_cta_pairs"
# Mutants that change no other kernel, or are for sessions of this one
MUTANTS = frozenset(
    {
        *("peer_ds_not_waited_for", "peer_probabilities_not_waited_for", "peer_dq_not_waited_for"),
        *("ds_sent_to_other_cta", "ds_fenced_in_own_memory", "queries_of_other_cta"),
        *("peer_loads_not_waited_for", "peer_keys_not_waited_for", "loads_handed_on_early"),
        *("commit_in_leader_alone", "stages_released_in_leader_alone"),
        *("ranks_of_one_cta", "added_after_one_cta", "released_for_both_ctas", "released_by_leader_alone"),
        *("released_before_all_warps_added", "keys_left_of_pair", "gradients_left_of_pair"),
        *("pair_not_met_at_start", "pair_exits_apart"),
    }
)


def missing(mutant: str) -> str | None:
    """Reason why sessions of `blocksparse` cannot look for a mutant, or None."""
    if mutant not in MUTANTS:
        return None
    return f"changes the backward kernel of pairs of CTAs: --target '{TARGET}!{mutant}' of ci/blocksparse_tcgen05.py"


def rule() -> Rule:
    """Refusal of lists for pairs where no kernel takes them."""
    why = (
        "lists for pairs of CTAs but for a backward pass by tcgen05, at head dims padded to 64 and 128 and in one call"
    )
    return Rule(why, _without_kernel)


def _without_kernel(case: Case) -> bool:
    p, options = case.problem, options_of(case)
    if not options["paired"]:
        return False
    there = backward_products("tcgen05", int(options["paired"]), padded_dim(p.dim)) == "tcgen05"
    return not (p.backward and options["products"] == "tcgen05" and there) or two_calls.splits(case)
