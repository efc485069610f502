"""The backward kernel's main loop with wgmma, and its semaphore warps."""
