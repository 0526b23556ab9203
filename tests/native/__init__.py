"""The native lane: it does what Python does, or nothing."""
