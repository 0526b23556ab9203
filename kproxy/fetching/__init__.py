"""The parts of a fetch: a consumer's partitions, fetch sessions, the poll, and the streamed
response."""
