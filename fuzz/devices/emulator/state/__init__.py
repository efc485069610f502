"""The emulated machine's state as arrays: warps, registers, CTAs, memory, and how addresses are looked up in it."""
