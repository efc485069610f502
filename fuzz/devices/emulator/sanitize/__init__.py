"""The checks that every access goes through.

`shadow.py` finds races and reads of memory that nothing wrote: it keeps who touched what last. `vector_clocks.py` says
which accesses are ordered, by barriers, fences and release with acquire; `lane_order.py` what a lane releases that its
warp has not waited for; `shared_lanes.py` finds races of two lanes of one warp. `shared_lines.py` and `global_lines.py`
keep one cell for 16 bytes that are always accessed together, and note a warp's access as a whole where nothing is
wrong.
`taint.py` follows 32-bit arithmetic that wrapped until it becomes an address.
"""
