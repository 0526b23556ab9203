"""Serving shards of a shared cluster: taking them over, publishing for them, deciding together."""
