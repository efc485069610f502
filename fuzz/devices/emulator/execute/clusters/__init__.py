"""Clusters of CTAs: their barrier, their place in the grid, and those that are cancelled before they start."""
