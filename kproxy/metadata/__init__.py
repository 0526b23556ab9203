"""The queues there are and the workers that serve them, for Metadata's answers."""
