"""Rows of a shard's store, a module for each family: keys, values, binary forms."""
