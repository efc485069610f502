"""Native sparse attention as an operation: its problem, which keys a row sees, its reference, its selection as an
answer of its own, and its error budget. Begin with problem.py, which defines the operation."""
