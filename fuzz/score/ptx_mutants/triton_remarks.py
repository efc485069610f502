"""Remarks on mutants of Triton's kernels that are bugs, and that the cases may miss: what would find them."""

from __future__ import annotations

# Of bugs that are bugs: operator, kind ("": any), instruction, what stands near it, and what would find them.
TRITON_REMARKS = (
    ("immediate_off_by_one", "", r"and\.b32 %r\d+, %r\d+, -65536;", "",
     "The lowest bit of a bfloat16's neighbour is left in a float32 that it is widened to: 2^-23 of it, less than what "
     "any sum in float32 may round."),
    ("compare_shifted", "", r"setp\.lt\.s32 %p\d+, %r\d+, %r\d+;", "",
     "The bound of one row of an unrolled tile, or of the columns: it shows where a sequence ends at just this row, "
     "one length in 64, or for a head dim that its kernel pads."),
    ("bound_shifted", "", r"setp\.gt\.s32 %p\d+, %r\d+, -1;", "",
     "The bound of one row of an unrolled tile, before a sequence's first token. It shows in a strict selection alone, "
     "whose mean queries begin before it, for the one row that is token 0 or the one before."),
    ("constant_wrong", "row_state_kernel", r"setp\.eq\.f32 %p\d+, %r\d+, 0fFF800000;", "",
     "Rows without keys keep a log-sum-exp of -inf. It shows where -inf in the bias hides them; where a mask does, P "
     "is set to 0 whatever it is."),
    *((operator, kind, before, near,
       "Sums over the warps of a list's marks: it shows in a list of more than 64 tiles, 4,096 keys, which one case in "
       "20 has.")
      for kind in ("lists_kernel", "lists_kernel.2")
      for operator, before, near in (("fragment_swapped", r"ld\.shared", ""), ("lane_wrong", r"shfl\.sync\.up", ""),
                                     ("guard_negated", r"@!?%p\d+ st\.shared", ""))),
    *((operator, "marks_kernel", before, "",
       "A part of what says whether a tile of the mask holds a pair: it shows in a tile with a pair in this part only.")
      for operator, before in (("offset_shifted", r"ld\.shared"), ("lane_wrong", r"shfl\.sync"),
                               ("immediate_off_by_one", r"selp"), ("guard_negated", r"@!?%p\d+ st\.shared"),
                               ("bound_shifted", r"setp"), ("instruction_dropped", r"ld\.shared"))),
    *(("guard_dropped", kind, r"@%p\d+ ld\.global\.b16", "",
       "A column past the head dim is read: it shows for a head dim that its kernel pads.")
      for kind in ("combine_kernel", "combine_kernel.2", "query_gradient_kernel.2", "split_kernel", "split_kernel.3")),
    ("guard_dropped", "gate_weight_kernel", r"@%p\d+ ld\.global\.b32", "",
     "The logit of a row past the end, read from the next head's, and multiplied by Q's 0: it shows at the end of the "
     "tensor, or beside a logit that is not finite."),
)  # fmt: skip
