"""Names by certificate: as Java writes them, and as rules map them."""

import datetime
import os
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from kproxy.security.certificates import BadCertificate, PrincipalRules, subject
from kproxy.security.peer import ANONYMOUS
from tests.harness import need_program

CN, O, OU, C = (  # noqa: E741
    NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME,
    NameOID.COUNTRY_NAME,
)  # fmt: skip
KEY = ec.generate_private_key(ec.SECP256R1())
Pair = tuple[x509.ObjectIdentifier, str]

NAMES: list[list[list[Pair]]] = [
    [[(CN, "alice")]],
    [[(C, "DE")], [(O, "Example, Inc.")], [(OU, "a+b")], [(CN, "alice")]],
    [[(CN, " svc=1 ")]],
    [[(CN, "#hash")], [(O, 'q"uote\\back')]],
    [[(CN, "<a>;b")]],
    [[(CN, "ämlaut € 漢字 😀")]],
    [[(CN, "  ")]],
    [[(CN, "a  b")]],
    [[(CN, "one"), (OU, "two")], [(O, "three")]],
    [[(NameOID.SERIAL_NUMBER, "42")], [(NameOID.TITLE, "Dr")], [(NameOID.EMAIL_ADDRESS, "a@b")]],
    [[(NameOID.DOMAIN_COMPONENT, "com")], [(NameOID.USER_ID, "u1")], [(CN, "x")]],
    [[(NameOID.STREET_ADDRESS, "s")], [(NameOID.STATE_OR_PROVINCE_NAME, "st")],
     [(NameOID.LOCALITY_NAME, "l")]],
    [[(NameOID.SURNAME, "s")], [(NameOID.GIVEN_NAME, "g")], [(NameOID.DN_QUALIFIER, "q")]],
    [[(x509.ObjectIdentifier("1.3.6.1.4.1.99999.1"), "own")], [(CN, "x")]],
    [],
]  # fmt: skip


def certificate(name: list[list[Pair]], kind: _ASN1Type | None = None) -> bytes:
    """Return DER of a certificate with this subject."""
    relative = [
        x509.RelativeDistinguishedName(
            x509.NameAttribute(oid, value, kind, _validate=False) for oid, value in pairs
        )
        for pairs in name
    ]
    now = datetime.datetime(2026, 1, 1)
    issuer = x509.Name([x509.NameAttribute(CN, "issuer")])
    made = x509.CertificateBuilder(
        issuer, x509.Name(relative), KEY.public_key(), 1, now, now + datetime.timedelta(1)
    ).sign(KEY, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.DER)


def test_names_are_java_s_letter_by_letter(tmp_path: Path) -> None:
    made = [certificate(name) for name in NAMES]
    made += [certificate([[(CN, "ab c")]], kind) for kind in (
        _ASN1Type.PrintableString, _ASN1Type.IA5String, _ASN1Type.T61String, _ASN1Type.BMPString,
        _ASN1Type.UniversalString, _ASN1Type.UTF8String,
    )]  # fmt: skip
    files = []
    for number, data in enumerate(made):
        files.append(tmp_path / f"{number}.der")
        files[-1].write_bytes(data)
    done = subprocess.run(
        [need_program("java"), str(Path(__file__).parent / "Names.java"), *map(str, files)],
        capture_output=True, timeout=120, check=True, env=os.environ | {"LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    assert [subject(data) for data in made] == done.stdout.decode().split("\n")[:-1]


@pytest.mark.parametrize(
    ("rules", "name", "principal"),
    [
        ((), "alice", "User:CN=alice"),
        (("DEFAULT",), "alice", "User:CN=alice"),
        (("RULE:^CN=(.*?)$/$1/",), "Alice", "User:Alice"),
        (("RULE:^CN=(.*?)$/$1/L",), "Alice", "User:alice"),
        (("RULE:^CN=(.*?)$/$1@x/U",), "Alice", "User:ALICE@X"),
        (("RULE:^OU=(.*?)$/$1/", "DEFAULT"), "alice", "User:CN=alice"),
        (("RULE:^CN=a(.*?)\\/b$/$1/",), "axx/b", "User:xx"),
        (("RULE:^CN=(a)(b)?$/$1$2/",), "a", "User:a"),
    ],
)
def test_rules(rules: tuple[str, ...], name: str, principal: str) -> None:
    assert PrincipalRules(rules).principal(certificate([[(CN, name)]])) == principal


def test_no_certificate_is_nobody_and_no_rule_is_a_refusal() -> None:
    assert PrincipalRules(()).principal(None) == ANONYMOUS
    with pytest.raises(BadCertificate, match="no rule"):
        PrincipalRules(("RULE:^CN=x$/x/",)).principal(certificate([[(CN, "alice")]]))


@pytest.mark.parametrize("rule", ["", "RULE:", "RULE:x", "RULE:x/y", "RULE:(/y/", "RULE:x/$1/",
                                  "RULE:x/y/Z", "default", "RULE:(?=x)/y/"])  # fmt: skip
def test_rules_that_are_none(rule: str) -> None:
    with pytest.raises(BadCertificate):
        PrincipalRules((rule,))


def test_certificates_that_are_cut_or_changed_are_read_or_refused() -> None:
    sound = certificate([[(CN, "alice")], [(O, "x")]])
    for end in range(len(sound)):
        with pytest.raises(BadCertificate):
            subject(sound[:end])
    for at in range(len(sound)):
        for byte in (0, 0x80, 0xFF):
            try:
                subject(sound[:at] + bytes([byte]) + sound[at + 1 :])
            except BadCertificate:
                continue
