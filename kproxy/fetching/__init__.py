"""Fetching: what a consumer follows, fetch sessions, and reading batches into an answer."""
