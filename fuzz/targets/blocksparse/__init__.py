"""Target `blocksparse`: the bundled block-sparse kernels and their mutants. Begin with target.py."""
