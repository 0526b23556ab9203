"""Lanes of share groups: which records belong together, and whose turn it is."""
