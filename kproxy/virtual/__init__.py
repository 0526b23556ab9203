"""The state machine: queues as a pure fold over a log. No I/O, clock or randomness."""
