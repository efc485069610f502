"""The forward kernel: kernel.py and mainloop.py for every arch (mma.sync), hopper/ with wgmma."""
