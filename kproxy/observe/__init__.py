"""kproxy seen from outside: metrics for Prometheus and health, served by a thread of its own."""
