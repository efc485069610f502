"""From parsed PTX to micro-operations: sixteen integers each, see `opcodes.py`.

Begin with `decoder.py`, which picks the family of an instruction; `memory`, `warp` and `wgmma` decode one family each.
`operands.py` gives registers and constants their places. `special_registers.py` is the table of %tid and the like,
`spins.py` finds what a spin waits for, `loops.py` what ends a loop, `wgmma_hazards.py` which instructions might use a
wgmma's registers too early, `undefined_registers.py` which ones read a register without a value.
"""
