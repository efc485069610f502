"""Runs launches. Begin with `launch.py` (one launch from set-up to report), then `watch.py` (runs it in pieces, and
ends it in an endless loop) and `interpreter.py` (one warp).

`cta.py` starts and ends CTAs, `divergence.py` chooses the lanes that run and puts spins to sleep. One file for each
family of instructions: `load_store`, `atomics`, `warp_ops` (shuffles, votes, barriers), `mbarrier`, `wgmma`. Three have
a folder: `bulk` (copies beside the warps), `clusters`, `tcgen05`. All but `launch.py` and `watch.py` is compiled by
numba.
"""
