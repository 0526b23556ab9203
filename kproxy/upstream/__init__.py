"""The Kafka cluster behind the queues: its topics, appending, reading, membership."""
