"""Drawing cases with Hypothesis: cases.py the strategy of a session, masks.py the masks in it.

oversubscribed.py draws grids of more CTAs than a device holds; reproducible_draws.py makes a seed give the same cases
in every process.
"""
