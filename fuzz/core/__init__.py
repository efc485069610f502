"""The values that everything else is about, and the Target base class. Begin with case.py and verdict.py.

case.py          Case: a problem, a target, a variant, the recipe of the inputs; its JSON and schema
verdict.py       Verdict, Finding, Signature: what a case came to
features.py      what is notable about a case; signature.py which failures are the same bug
target.py        Target: the adapter to one kernel under test
"""
