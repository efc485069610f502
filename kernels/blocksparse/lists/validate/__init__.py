"""Requirements of a kernel's arguments: every refusal is a ValueError that names the field, what it got and what it
needs.

shapes.py: types, shapes, dtypes and devices; it asks the device nothing and runs at every call. contents.py reads the
lists: a wrong one would be a read out of bounds, a wrong result, or (NOTE [write order]) a GPU that spins forever. The
public call runs it once for every BlockSparse and shape that it meets, and not while compiling or capturing.
"""
