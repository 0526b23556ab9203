"""Forms of binary rows and bodies: one byte names the form, and an unknown form is refused."""


def later_form(what: str, form: int) -> ValueError:
    return ValueError(
        f"{what} has form {form}, which this kproxy does not know: it was written by a later one"
    )
