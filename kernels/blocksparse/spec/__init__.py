"""What a kernel is compiled for (variant.py), its arguments (signature.py), where faults can be injected (seams.py)."""
