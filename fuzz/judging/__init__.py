"""run_case: a Case goes in, a Verdict comes out. Begin with judge.py, which runs in the killable child.

execution.py runs the target, raised.py judges what it raises; follow_up.py makes the follow-up cases of metamorphic
relations; cta_subset.py runs some CTAs of a huge case; verdict_builder.py puts the oracles' findings together.
"""
