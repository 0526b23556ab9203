"""Delays: records that wait until they are due, and are appended then, once each."""
