"""Saved cases: one readable JSON file each. entry.py reads, writes and replays them; conformance.py makes the matrix of
the published configurations."""
