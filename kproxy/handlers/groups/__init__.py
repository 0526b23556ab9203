"""Groups of the classic and the consumer protocol, and committed offsets."""
