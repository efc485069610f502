"""Mutants: bundled kernels with one injection point replaced, for the harness to find, minimise and name.

Each module holds the mutants of one kernel as MUTANTS, a dict by name. No mutant is in a kernel's normal path.
"""

from kernels.mutants.mutant import Mutant

__all__ = ["Mutant"]
