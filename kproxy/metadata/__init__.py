"""Which queues there are and which worker serves what: what Metadata is answered from."""
