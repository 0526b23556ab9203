"""Redrives and bulk jobs while servers are killed."""
