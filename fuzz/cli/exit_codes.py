"""Exit codes of `attnfuzz`, the same for every command."""

from __future__ import annotations

OK = 0  # all as expected
FINDINGS = 1  # findings, or a check that failed
USAGE = 2  # a bad option, a malformed file, an unknown target
HARNESS = 3  # a fault of the harness itself, with its traceback
INTERRUPTED = 130  # Ctrl-C; what was recorded until then is saved

SUMMARY = """\
exit codes: 0 all as expected, 1 findings, 2 usage (a bad option, a malformed
file, an unknown target), 3 a fault of the harness itself, 130 Ctrl-C"""
