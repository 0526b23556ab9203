"""One file per API family: decode, rule, append or read, answer."""
