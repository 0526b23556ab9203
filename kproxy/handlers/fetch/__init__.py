"""Fetch and look-ups of offsets."""
