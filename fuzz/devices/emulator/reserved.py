"""What of shared memory the system has."""

RESERVED_SHARED = 1024  # bytes at its begin, from sm_80 on (CUDA C++ programming guide, compute capability 8.x)
