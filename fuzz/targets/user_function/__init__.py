"""@target: a user's own function as a target. Begin with function.py."""
