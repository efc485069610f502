"""Compilation of a Variant to a function: build.py compiles, supported.py says what fits an arch, runtime.py calls."""
