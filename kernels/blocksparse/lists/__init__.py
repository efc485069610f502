"""Block lists: the types, builders for each kind of mask, transposition, the write order, checks. Begin with
types.py."""
