"""A case's tensors: their numbers (values.py, coded_values.py), where they lie (arena.py), what guards them.

guard_bands.py poisons what is allocated and sees writes outside of it; to_cpu.py brings results back.
"""
