"""The backward kernel's straight main loop with wgmma, for tiles of 64 keys, and its semaphore warps."""
