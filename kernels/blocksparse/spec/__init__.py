"""Variants of kernels (variant.py), their arguments (signature.py), and the injections of mutants (injection.py)."""
