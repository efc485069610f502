"""Devices for compiled kernels: cuda.py a GPU, emulator/ an emulated one. deadlock.py explains semaphores that
stand."""
