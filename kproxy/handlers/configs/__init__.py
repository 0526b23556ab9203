"""Settings of queues, groups and brokers."""
