"""A session: plan, draw, compile, run, record, report. Begin with settings.py and plan.py, then worker.py.

settings.py  what a session does, and the options that set it, for the command line and for pytest
plan.py      the shards of a session, each with a seed of its own, in the order in which they are run
draw.py      the cases of a shard; turns.py has those that it begins with
worker.py    runs the cases, with one child; crew.py has the workers' processes (fuzz/fleet those on other machines)
pool.py      the whole session
records.py   what workers write into a session's folder, through book.py; resume.py reads it again
precompile/  the kernels that a session needs, compiled beside it
failures/    what becomes of failures: recorded, confirmed, minimised, saved
summary/     what users see while it runs and at its end
"""
