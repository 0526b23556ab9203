"""Logs: a log orders a shard's envelopes and keeps them. `local` is embedded, `shared` on Kafka."""
