"""Target `blocksparse`: the bundled block-sparse kernels and their mutants. Begin with target.py; gpu.py and
emulated.py run it, catalog.py lists its targets."""
