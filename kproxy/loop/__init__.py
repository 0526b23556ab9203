"""Sharing the event loop: long work in slices, periodic work, garbage collection."""
