"""Failures of a session: recording.py takes them in as they are met; settle.py confirms, minimises and saves each cause
after the cases. Begin there.
"""
