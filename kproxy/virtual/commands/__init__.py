"""Envelopes of a shard's log, a module for each family: fields and bytes."""
