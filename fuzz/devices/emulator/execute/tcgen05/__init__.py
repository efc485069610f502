"""Blackwell's tensor cores and tensor memory. Begin with issue.py."""
