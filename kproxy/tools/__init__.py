"""`kproxy queues`, `groups`, `describe` and `delete`: Kafka requests to a served kproxy."""
