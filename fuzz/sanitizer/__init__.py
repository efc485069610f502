"""A case under NVIDIA's compute-sanitizer: report.py reads its text, run.py calls it, alone.py is what runs in it."""

from fuzz.sanitizer.report import Report, read
from fuzz.sanitizer.run import TOOLS, SanitizerError, sanitize

__all__ = ["TOOLS", "Report", "SanitizerError", "read", "sanitize"]
