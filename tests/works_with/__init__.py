"""Frameworks that people run beside kproxy, by small programs, with rows in docs/works-with.md."""
