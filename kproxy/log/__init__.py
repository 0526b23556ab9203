"""Logs: what orders a shard's envelopes and keeps them. `local` is the embedded one."""
