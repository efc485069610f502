"""Mutants of `kernels.nsa`: table.py, by the registration of registration.py."""
