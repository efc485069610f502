"""What a kernel is compiled for (variant.py), its arguments (signature.py), and what mutants inject (injection.py)."""
