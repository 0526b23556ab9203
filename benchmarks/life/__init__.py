"""The cost of queues and records that go, and go back, by themselves."""
