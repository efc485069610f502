"""The scoreboard: how many planted bugs the harness finds, after how many cases, beside plainer ways to look.

settings.py  what a score does, what a trial is
plan.py      which bugs there are; which trials; the kernels that a score may compile
draws.py     the cases of a trial: the session's own strategies, or uniform ones
judging.py   the judge, with what other projects' acceptance rules say of the same answers
trial.py     one bug, one seed, one generator: until it is found
run.py       all trials in worker processes, written down as they end
board.py     what comes of them: medians, worst, by which oracle
show.py, picture.py   a table, a survival curve
machine/     machine-made bugs: small changes of the kernels' PTX
quick.py     the short form for a change: what was found must be found again
"""
