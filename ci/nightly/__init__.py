"""A night: everything that runs while nobody looks, in stages that go on where they were cut off.

state.py     the night's folder: which stage is done, with which result
options.py   the command line, and what the machine has
stages.py    the stages, in their order
passed.py    which tests a night that was cut off has behind it
fuzzing.py   sessions on each device, within a budget (budget.py)
findings.py  minimising and bisecting what is new
unfinished.py  sessions of killed processes
summary.py   the plan and the table at the end
"""
