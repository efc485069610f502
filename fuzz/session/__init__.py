"""A session: plan, draw, run, record, report. Begin with plan.py, then worker.py.

plan.py        the settings; the shares of a session, each with a seed of its own
draw.py        the cases of a share; worker.py runs them and reports every bug once; pool.py starts the workers
build_plan.py  the kernels that a session needs; precompile.py and compile_progress.py compile them first
records.py     what workers write; report.py is what a user sees
"""
