"""A stand-in before the real one for processes that tests serve: a user has no Hypothesis.

kio's phantom types import it where it is installed, which takes a third of kproxy's start.
"""

raise ImportError("kproxy is served without Hypothesis")
