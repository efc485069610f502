"""Attacks of ci/attack.py: kills, full disks, hostile files. One file for each kind."""
