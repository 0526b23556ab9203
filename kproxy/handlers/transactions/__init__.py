"""Transactions, and ids of producers."""
