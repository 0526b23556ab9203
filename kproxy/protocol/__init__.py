"""Bytes to values and back. The only importer of kio; no I/O, no clock."""
