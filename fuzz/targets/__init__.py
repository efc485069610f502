"""The kernels under test: one adapter per file, the registry, and @target for a user's own."""
