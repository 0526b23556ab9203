"""Makes text that a peer chose safe for a terminal."""


def printable(text: str) -> str:
    """Escape every character that is not visible: \\x1b, \\x9b, \\u202e.

    Group ids, client ids and the like come from anybody, and a terminal obeys what it is shown.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
