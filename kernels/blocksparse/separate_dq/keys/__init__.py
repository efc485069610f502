"""dK and dV of tiles of 64 keys where dQ is separate, with keys as rows of the scores."""
