"""The identity of a client by its certificate: the subject's name as Java writes it, and rules.

A subject must be written letter by letter as Kafka writes it, for ACLs that name it: Java's
`X500Principal.getName()`, which is RFC 2253 with its own mind about types and escapes.
"""

import re
from typing import Any, NamedTuple

import re2  # type: ignore[import-untyped]

from kproxy.security.peer import ANONYMOUS

_NAMES = {
    b"\x55\x04\x03": "CN", b"\x55\x04\x06": "C", b"\x55\x04\x07": "L", b"\x55\x04\x08": "ST",
    b"\x55\x04\x0a": "O", b"\x55\x04\x0b": "OU", b"\x55\x04\x09": "STREET",
    bytes.fromhex("0992268993f22c640119"): "DC", bytes.fromhex("0992268993f22c640101"): "UID",
}  # fmt: skip
_TEXTS = (12, 19, 20, 22, 27, 30)  # types of text; Java reads the bytes of all as UTF-8
_ESCAPED = ',=+<>#;"\\'
_SEQUENCE, _SET, _OID, _VERSION = 0x30, 0x31, 0x06, 0xA0
_QUIET = re2.Options()
_QUIET.log_errors = False
_RULE = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")


class BadCertificate(Exception):
    """A certificate, or a rule, cannot be read; one line for a person."""


class _Value(NamedTuple):
    tag: int
    body: bytes
    whole: bytes


def _parts(data: bytes) -> list[_Value]:
    """Return the values that follow each other in DER. Raises BadCertificate."""
    found, at = [], 0
    while at < len(data):
        begin, tag = at, data[at]
        if at + 2 > len(data):
            raise BadCertificate("its DER ends early")
        size, at = data[at + 1], at + 2
        if size & 0x80:
            count = size & 0x7F
            size, at = int.from_bytes(data[at : at + count], "big"), at + count
            if not 0 < count <= 4:
                raise BadCertificate("its DER has a length that is too long")
        if size > len(data) - at:
            raise BadCertificate("its DER ends early")
        found.append(_Value(tag, data[at : at + size], data[begin : at + size]))
        at += size
    return found


def _one(data: bytes, tag: int) -> bytes:
    parts = _parts(data)
    if len(parts) != 1 or parts[0].tag != tag:
        raise BadCertificate("its DER is not a certificate's")
    return parts[0].body


def subject(certificate: bytes) -> str:
    """Return the subject's name of a certificate (DER), as Java writes it.

    Raises BadCertificate.
    """
    signed = _parts(_one(certificate, _SEQUENCE))[0]
    fields = _parts(signed.body)
    at = 5 if fields and fields[0].tag == _VERSION else 4
    if len(fields) <= at or fields[at].tag != _SEQUENCE:
        raise BadCertificate("it has no subject")
    names = []
    for relative in _parts(fields[at].body):
        if relative.tag != _SET:
            raise BadCertificate("its subject is not a name")
        names.append("+".join(_pair(one.body) for one in _parts(relative.body)))
    return ",".join(reversed(names))


def _pair(data: bytes) -> str:
    parts = _parts(data)
    if len(parts) != 2 or parts[0].tag != _OID:
        raise BadCertificate("its subject is not a name")
    oid, value = parts
    name = _NAMES.get(oid.body)
    if name is None:
        return f"{_dotted(oid.body)}=#{value.whole.hex()}"
    if value.tag not in _TEXTS:
        return f"{name}=#{value.whole.hex()}"
    return f"{name}={_escape(value.body.decode(errors='replace'))}"


def _dotted(data: bytes) -> str:
    numbers, number = [], 0
    for byte in data:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    if not numbers:
        raise BadCertificate("its subject is not a name")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _escape(text: str) -> str:
    text = "".join(
        "\\00" if one == "\0" else f"\\{one}" if one in _ESCAPED else one for one in text
    )
    inner = text.strip(" \r")
    if not inner:
        return "".join(f"\\{one}" for one in text)
    begin = text.index(inner)
    before, after = text[:begin], text[begin + len(inner) :]
    return "".join(f"\\{one}" for one in before) + inner + "".join(f"\\{one}" for one in after)


class _Rule(NamedTuple):
    pattern: Any  # None: the name as it is
    replacement: str
    case: str


class PrincipalRules:
    """Kafka's `ssl.principal.mapping.rules`: the first that matches a whole name says who it is."""

    def __init__(self, rules: tuple[str, ...]) -> None:
        """Parse the rules. Raises BadCertificate."""
        self._rules = [_rule(text.strip()) for text in rules] or [_rule("DEFAULT")]

    def principal(self, certificate: bytes | None) -> str:
        """Return the principal of a client by its certificate (DER). Raises BadCertificate."""
        if certificate is None:
            return ANONYMOUS
        name = subject(certificate)
        for rule in self._rules:
            if rule.pattern is None:
                return f"User:{name}"
            found = rule.pattern.fullmatch(name)
            if found is not None:
                return f"User:{_cased(_filled(rule.replacement, found), rule.case)}"
        raise BadCertificate(f"no rule says who {name} is")


def _rule(text: str) -> _Rule:
    if text == "DEFAULT":
        return _Rule(None, "", "")
    parsed = _RULE.fullmatch(text)
    if parsed is None:
        raise BadCertificate(f"{text}: write it as RULE:PATTERN/REPLACEMENT/ or DEFAULT")
    pattern, replacement, case = parsed.groups()
    try:
        compiled = re2.compile(pattern.replace("\\/", "/"), _QUIET)
    except re2.error as error:
        raise BadCertificate(f"{text}: {error}") from None
    numbers = [int(number) for number in re.findall(r"\$(\d)", replacement)]
    if max(numbers, default=0) > compiled.groups:
        raise BadCertificate(f"{text}: the pattern has {compiled.groups} groups")
    return _Rule(compiled, replacement.replace("\\/", "/"), case)


def _filled(replacement: str, found: Any) -> str:
    return re.sub(r"\$(\d)", lambda number: found[int(number[1])] or "", replacement)


def _cased(name: str, case: str) -> str:
    return {"L": name.lower, "U": name.upper}.get(case, lambda: name)()
