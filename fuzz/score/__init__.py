"""Mutation score: how many mutants of the bundled kernels the harness finds, after how many cases, beside simpler ways.

settings.py          settings of a score, and of a trial
trial_plan.py        the mutants, the trials, and the kernels that a score may compile
case_streams.py      the cases of a trial: the session's own strategies, or uniform ones
criteria_judge.py    the judge, with the verdicts of other projects' acceptance criteria on the same outputs
trial.py             one mutant, one seed, one generator: until it is found
run.py               all trials in worker processes, written to files as they end
scoreboard.py        results: medians, worst, by which oracle
render.py            the scoreboard as a table; score_plot.py as a survival curve
regression_check.py  the short form for a change: mutants that were found must be found again
command.py           `attnfuzz mutation-score`
ptx_mutants/         mutants made by small changes of the kernels' PTX
"""
