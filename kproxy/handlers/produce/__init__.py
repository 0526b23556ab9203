"""Produce."""
