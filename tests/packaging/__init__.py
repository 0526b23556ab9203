"""A wheel of kproxy, as others install it."""
