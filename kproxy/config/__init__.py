"""Settings of the server."""
