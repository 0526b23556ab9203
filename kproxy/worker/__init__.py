"""One worker: what handlers get, and how shards are found."""
