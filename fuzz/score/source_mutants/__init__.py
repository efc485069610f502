"""Source mutants: how many one-line changes of the bundled kernels' Python source, and of their host code, does a
session of 60 cases find?

    python -m fuzz.score.source_mutants --count 200 --json ci/results/source_mutants_h200.json

Each mutant is a copy of the package `kernels` with one expression or statement changed, and gets a session of its own,
with the cases that `attnfuzz run` draws; no case, oracle or planner knows of it.

operators.py  the changes, from Python's syntax tree
sampling.py   the mutants that a seed draws
trial.py      the session of one mutant; whether a session comes to the changed line at all
session.py    that session, as a process
results.py    SourceMutant, Result, SourceScore
render.py     `table(score)`: a score as Markdown
"""
