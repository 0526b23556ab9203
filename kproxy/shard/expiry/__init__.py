"""The parts of a shard that delete something by themselves."""
