"""A shard: its log, its state, and the housekeeping of both."""
