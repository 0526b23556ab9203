"""`kproxy produce` and `consume`: records as text, JSON lines and files."""
