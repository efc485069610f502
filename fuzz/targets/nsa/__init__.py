"""nsa: the bundled native sparse attention, kernels.nsa, on each device. `target` makes the call; `emulated` and `gpu`
run it; `catalog` lists the targets."""
