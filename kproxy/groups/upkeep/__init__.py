"""Work on groups that no request waits for."""
