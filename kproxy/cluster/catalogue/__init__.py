"""The catalogue of all queues, groups and rules, followed from the queues topic."""
