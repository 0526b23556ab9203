"""Which queues there are and which worker serves them: what Metadata is answered from."""
