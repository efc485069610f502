"""Reduction of a failing Case to the smallest that fails in the same way.

search.py walks the table of passes.py; a pass (kinds.py) is a plain function that proposes smaller cases. It works on a
Case that no strategy drew, needs nothing but a function from Case to Verdict, and survives hangs and flaky failures.
"""

from fuzz.minimize.passes import PASSES
from fuzz.minimize.result import Minimized, Step
from fuzz.minimize.search import minimize

__all__ = ["PASSES", "Minimized", "Step", "minimize"]
