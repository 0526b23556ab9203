"""What a consumer fetches: its partitions, fetch sessions, the poll, and the streamed response."""
