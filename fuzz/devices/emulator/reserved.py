"""The part of a CTA's shared memory that belongs to the system."""

RESERVED_SHARED = 1024  # bytes at its begin, from sm_80 on (CUDA C++ programming guide, compute capability 8.x)
