"""Speed, measured with clients that users have: `make bench`, `make bench-quick`."""
