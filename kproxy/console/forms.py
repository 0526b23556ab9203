"""The forms that pages send: small, and read within a time."""

from typing import Any
from urllib.parse import parse_qsl

import anyio

_FORM_BYTES_MAX = 256 << 10
_FIELDS_MAX = 200
READ_S = 10.0
_TYPE = "application/x-www-form-urlencoded"


class BadForm(Exception):
    """A form that no page of the console sends; one line for a person."""


async def form_of(request: Any) -> dict[str, str]:
    """Return the fields of a form. Raises BadForm."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != _TYPE:
        raise BadForm(f"a form is {_TYPE}")
    body = bytearray()
    try:
        with anyio.fail_after(READ_S):
            async for piece in request.stream():
                body += piece
                if len(body) > _FORM_BYTES_MAX:
                    raise BadForm(f"a form has {_FORM_BYTES_MAX} bytes at most")
    except TimeoutError:
        raise BadForm("the form did not come in time") from None
    try:
        pairs = parse_qsl(
            body.decode(), keep_blank_values=True, errors="strict", max_num_fields=_FIELDS_MAX
        )
    except ValueError:
        raise BadForm("the form cannot be read") from None
    return dict(pairs)
