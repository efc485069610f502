"""From a Variant to a compiled function: build.py compiles, supported.py says what fits an arch, runtime.py calls."""
