"""What users see of a session: follow.py while it runs, report.py at its end."""
