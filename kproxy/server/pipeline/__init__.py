"""The order of a connection's requests, as a machine without I/O."""
