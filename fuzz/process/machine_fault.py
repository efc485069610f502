"""MachineFault: what kept a case from being run and is neither the kernel's doing nor the harness's."""

from __future__ import annotations


class MachineFault(Exception):
    """A full disk, a read-only file system, a compiler that somebody killed. Never a finding of a target; one line."""
