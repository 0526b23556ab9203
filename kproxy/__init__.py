"""kproxy: millions of queues behind the Kafka protocol."""

__version__ = "0.2.0"
