"""The local copy of a shard: batches in append-only segments, rows in RocksDB."""
