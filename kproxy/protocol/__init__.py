"""Bytes to values and back. The only package that imports kio. No I/O, no clock."""
