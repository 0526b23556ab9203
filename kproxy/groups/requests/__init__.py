"""Requests of members and administrators as rules on a group."""
