"""Where compiled kernels run: cuda.py a GPU, emulator/ an emulated one. deadlock.py explains semaphores that stand."""
