"""A session: plan, draw, compile, run, record, report. Begin with settings.py and plan.py, then worker.py.

settings.py    what a session does, and the options that set it, for the command line and for pytest
plan.py        the shards of a session, each with a seed of its own, in the order in which they are run
draw.py        the cases of a shard; worker.py runs them, recording.py makes their records
pool.py        the whole session, with crew.py's processes (fuzz/fleet has workers on other machines)
build_plan.py  the kernels that a session needs; precompile.py compiles them beside it, ready.py tells who may start
records.py     what workers write, book.py; follow.py shows it while the session runs, report.py at its end
settle.py      failures after the cases: look_into.py confirms and minimises one, write_down.py reports each bug once
"""
