"""Queues and their partitions: make, delete, list, place."""
