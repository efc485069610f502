"""Labelled race suites of others: what their kernels are, and how each is launched (indigo.py, scor.py)."""
