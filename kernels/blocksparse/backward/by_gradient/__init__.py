"""Hopper's backward kernel at head dim 256: each multiplying warpgroup has a gradient of its own, dV or dK."""
