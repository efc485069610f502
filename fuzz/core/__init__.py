"""The values that everything else is about, and the Target base class. Begin with case.py and verdict.py.

case.py          Case: a problem, a target, a variant, the recipe of the inputs; its JSON and schema
verdict.py       Verdict, Finding, Signature: what a case came to
features.py      what is notable about a case; signature.py which failures are the same bug
target.py        Target: the adapter to one kernel under test
support.py       Support, Rule: what a target declares to take; refusal.py why it does not take a case
relations.py     the metamorphic relations that a target can be asked about
"""
