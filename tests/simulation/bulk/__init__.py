"""Simulations of bulk jobs."""
