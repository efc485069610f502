"""A session: plan, draw, run, record, report. Begin with worker.py.

build_plan.py and precompile.py compile what a session needs; pool.py starts the workers of the command line; records.py
is what they write; report.py is what a user sees.
"""
