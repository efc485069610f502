"""The backward kernel for Blackwell on pairs of CTAs: two tiles of keys that share Q and dO.

Lists have tiles of 256 keys, two of them adjacent; layouts, masks and the meaning of every argument are else those of
backward/kernel.py. No GPU of this kind has run it: it was written and checked on the emulated GPU alone.
"""
