"""Redrives while servers are killed."""
