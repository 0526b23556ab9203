"""What it costs that queues and records go, and go back, by themselves."""
