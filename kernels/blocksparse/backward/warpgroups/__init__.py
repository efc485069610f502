"""The main loop of the backward kernel by wgmma with queries as rows of the scores, and its semaphore warps."""
