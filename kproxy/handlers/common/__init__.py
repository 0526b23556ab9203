"""Checks and answers that several families of handlers share."""
