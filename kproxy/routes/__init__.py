"""Routes: records of a queue are passed on to other queues, once each and in order."""
