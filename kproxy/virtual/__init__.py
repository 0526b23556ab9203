"""Queues as a pure fold over a log: rows, envelopes, and `apply`. No I/O, clock or randomness."""
