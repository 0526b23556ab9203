"""kproxy seen from outside."""
