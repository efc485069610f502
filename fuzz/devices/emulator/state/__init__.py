"""The machine's state while a launch runs, and how compiled code reads it.

Begin with `tables.py`: every table, its columns by name, and how numba sees it; `machine.py` gives Python the same
tables as numpy arrays. `global_memory.py` maps tensors to addresses, `addressing.py` checks and translates an access,
`intrinsics.py` reads and writes raw memory, `code_cache.py` names the folder of compiled code by its sources.
`mbarrier_word.py` and `wgmma_descriptor.py` are layouts of 64-bit words.
"""
