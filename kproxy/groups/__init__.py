"""Groups with members: the coordinator of each shard served here."""
