"""One file per API family. A handler decodes, calls the rule, and encodes the answer."""
