"""The backward kernel for sm_90a with the transposed main loop: loads by TMA, dQ added by bulk reductions."""
