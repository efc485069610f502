"""Metamorphic relations: a follow-up problem whose answer follows from the first one's. Begin with relations.py."""
