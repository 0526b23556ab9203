"""Errors, logs, counters, and other small things."""
