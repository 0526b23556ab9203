"""Sockets, connections and the table of APIs."""
