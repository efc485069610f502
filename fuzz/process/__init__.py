"""Processes: signals, the tie of a child to its parent's life, external tools. Knows nothing of cases."""
