"""Bounds of the error that rounding alone may cause. Begin with budget.py; its terms are measured by
same_precision.py."""
