"""Compiling ahead of a session's cases: build_plan.py knows which kernels, background_compile.py has them made."""
