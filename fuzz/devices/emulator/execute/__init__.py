"""Running a launch: launch.py dispatches CTAs, interpreter.py runs a warp, one file for each family of instructions."""
