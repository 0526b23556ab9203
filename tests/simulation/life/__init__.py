"""Queues and records that go by themselves, by seeds."""
