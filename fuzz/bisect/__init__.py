"""The first revision that fails: a search over revisions that bears failures which show now and then.

posterior.py   how probable each revision is to be the first bad one, after some runs
search.py      which revision is run next, when the search ends, and its answer
journal.py     every run on disk, so that a search that was killed goes on
revisions.py   what the search needs of a history, and of an environment for one revision (protocols)
checkouts.py   a git repository: each revision in a temporary worktree
packages.py    a list of package versions: each in a virtual environment
trial.py       runs of one case with a revision's code, in a process of its own (trial_child.py)
"""
