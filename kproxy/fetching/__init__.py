"""The parts of a fetch: a consumer's partitions, sessions, the poll, and the streamed response."""
