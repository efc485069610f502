"""What the emulated GPU sees while it runs: races (vector_clocks, shadow) and wrapped indices (taint)."""
