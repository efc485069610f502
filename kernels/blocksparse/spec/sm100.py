"""What an SM of sm_100a and sm_103a has, and the shapes that tensor memory fixes. Nothing here imports cutlass."""

ROWS = 128  # lanes of tensor memory: rows of a product
COLUMNS = 512  # of tensor memory, 32 bits each
SHARED = 232448  # bytes of shared memory that a CTA can have
RESERVED = 1024  # bytes of shared memory that the system takes of each CTA
REGISTERS = 65536
MOST = 248  # registers of a thread; 255, but in steps of 8
