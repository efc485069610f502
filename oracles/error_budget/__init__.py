"""How wrong rounding alone may make an answer. Begin with budget.py; its terms are measured by same_precision.py."""
