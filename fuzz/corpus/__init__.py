"""Saved cases: one readable JSON file each. Begin with entry.py.

entry.py        what a file holds: a case, what is expected of it, and why
store.py        files are written whole or not at all; reading them
replay.py       a saved case runs again: passes, fails as known, or fails otherwise
distil.py       the fewest cases that cover all features and signatures (fewest.py)
conformance.py  the matrix of the published configurations for one target
"""
