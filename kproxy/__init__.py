"""kproxy: millions of queues behind the Kafka protocol."""

__version__ = "0.1.0"
