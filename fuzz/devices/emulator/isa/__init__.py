"""Instructions that only touch registers: what each computes on 32 lanes, as rows of one table.

Begin with `table.py` (a row: name, operands, result, code in LLVM IR). `moves`, `integers` and `floats` fill it, with
`conversions`, `approximate` and `vectors` below them; `all_forms.py` has the whole table. `mma.py` is the matrix
instructions. `straight_line.py` compiles all of it into one loop that runs until it meets another kind of instruction.
"""
