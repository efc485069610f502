"""Micro-kernels of bulk copies, with tensor maps (the tensor memory accelerator) and without.

`text.py` has their parts; `loads.py` copies to shared memory, `stores.py` copies from it, `reductions.py`
cp.reduce.async.bulk, `plain.py` copies without a map, `maps.py` tensor maps that kernels write themselves,
`limits.py` what lies at
the limits of a GPU, `suite.py` all of them. Begin with `text.py` and `loads.py`.
"""
