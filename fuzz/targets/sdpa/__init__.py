"""Target `sdpa`: the bundled dense attention in Triton, and its mutants. Begin with target.py; interpreted.py,
emulated.py and gpu.py run it, catalog.py lists its targets."""
