"""What goes of a shard by itself."""
