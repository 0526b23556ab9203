"""Subscriptions, assignors, and a member's way to its target."""
