"""The outcome of a run: findings, deadlocks and timelines, as data and as text.

Begin with `report.py` (Report, Finding). `kinds.py` has the sentence for each kind of finding, `deadlock.py` the graph
of waits, `endless.py` a loop that does not end; `from_machine.py` reads the first two out of a machine that has
stopped. `timeline.py` says who ran when, `timeline_svg.py` draws it, `save.py` writes it to files.
"""
