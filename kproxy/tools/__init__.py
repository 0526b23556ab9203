"""`kproxy queues`, `groups`, `describe` and `delete`: asked over the Kafka protocol."""
