"""The forward kernel: kernel.py and mainloop.py for every arch (mma.sync), hopper/ (wgmma), blackwell/ (tcgen05)."""
