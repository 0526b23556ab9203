"""Versions and features."""
