"""Target `dynamic_mask`: the bundled attention with a mask and a bias that are two tensors, and its mutants. Begin with
target.py; call.py makes the arguments of a call, interpreted.py, emulated.py and gpu.py run it, catalog.py lists it."""
