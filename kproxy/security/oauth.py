"""OAUTHBEARER (RFC 7628): who a signed token says that a client is.

A token must be signed by one of the listener's keys with an algorithm that is made for such a key,
and must say by whom, for whom, since when and until when. Nothing that a token itself says names a
key, an algorithm or an address that is asked: by whom it is says which of the listener's issuers
checks it, and that one finds whether it is true.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import jwt

from kproxy.security.scram import BadLogin

TOKEN_BYTES_MAX = 16 << 10
_KEYS_MAX = 100
_TRIED_MAX = 4
"""Keys for a token that names none."""
_LIFETIME_S_MAX = 10 * 365 * 86_400
_LEEWAY_S = 30
_ALGORITHMS: dict[tuple[Any, Any], tuple[str, ...]] = {
    ("RSA", None): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}  # by type and curve
_CLAIMS = ["exp", "iat", "iss", "aud"]
_MESSAGE = re.compile(rb"n,(?:a=([^,\x00\x01]*))?,\x01((?:[A-Za-z]+=[^\x00\x01]*\x01)*)\x01")
INVALID = b'{"status":"invalid_token"}'


class Key(NamedTuple):
    """A key of an issuer, and the algorithms that it may be used with."""

    name: str | None
    key: Any
    algorithms: list[str]


class BadKeys(Exception):
    """A document of keys is not one; a line for a person."""


def keys_of(document: bytes) -> list[Key]:
    """Return the keys of a JWKS (RFC 7517) that signatures can be checked with. Raises BadKeys."""
    try:
        values = json.loads(document)
        listed = values["keys"]
        if not isinstance(listed, list) or len(listed) > _KEYS_MAX:
            raise BadKeys(f"it has no list of up to {_KEYS_MAX} keys")
        return [key for value in listed if (key := _key(value)) is not None]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadKeys("it is not a JSON object of keys (JWKS)") from None


def _key(value: Any) -> Key | None:
    """Return a key; None for one that is not for signatures, or whose holder could sign as well."""
    said, curve = value.get("alg"), value.get("crv")
    allowed = _ALGORITHMS.get((value.get("kty"), curve), ())
    if said is not None:
        allowed = tuple(algorithm for algorithm in allowed if algorithm == said)
    if not allowed or value.get("use", "sig") != "sig":
        return None
    try:
        key = jwt.PyJWK(value, allowed[0]).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    return Key(value.get("kid"), key, list(allowed))


class Bearer(NamedTuple):
    """The bearer of a token."""

    name: str
    expires_s: float  # since 1970


class Claims(NamedTuple):
    """The claims of a token that name its bearer, and its purpose."""

    principal: str = "sub"
    scope: str = "scope"
    scopes: tuple[str, ...] = ()
    """The scopes that it must have, all of them."""
    prefix: str = ""
    """A text before the name that the token says."""
    prefixes: frozenset[str] = frozenset()
    """The prefixes of all issuers: names that begin with a longer one are those issuers' own."""

    def named(self, name: str) -> str:
        """Return the user that a token names. Raises ValueError: only another issuer names it."""
        user = self.prefix + name
        if any(len(one) > len(self.prefix) and user.startswith(one) for one in self.prefixes):
            raise ValueError(f"its {self.principal} begins as names of another issuer do")
        return user

    def missing(self, claims: Mapping[str, Any]) -> str | None:
        """Return a scope that a token has not; None: it has all."""
        if not self.scopes:
            return None
        told = _claim(claims, self.scope)
        if isinstance(told, str):
            told = told.split(" ")
        has = {one for one in told if isinstance(one, str)} if isinstance(told, list) else set()
        return next((scope for scope in self.scopes if scope not in has), None)


def _claim(claims: Mapping[str, Any], path: str) -> Any:
    """Return a claim by its name, or by the names of those that it lies in, with dots between."""
    if path in claims:
        return claims[path]
    for place, character in enumerate(path):
        within = claims.get(path[:place]) if character == "." else None
        if isinstance(within, dict) and (found := _claim(within, path[place + 1 :])) is not None:
            return found
    return None


SUBJECT = Claims()


class Checks(Protocol):
    """A way to tell the bearer of a token."""

    def check(self, token: str) -> Bearer:
        """Return the bearer of a token. Raises BadLogin."""
        ...


class Issuers:
    """Checks tokens of several issuers."""

    def __init__(self, issuers: Iterable["Tokens"]) -> None:
        self._issuers = {one.issuer: one for one in issuers}

    def check(self, token: str) -> Bearer:
        """Return the bearer of a token. Raises BadLogin."""
        try:
            said = jwt.decode(token, options={"verify_signature": False}).get("iss")
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise BadLogin(f"no token: {error}") from None
        issuer = self._issuers.get(said) if isinstance(said, str) else None
        if issuer is None:
            raise BadLogin("a token of an issuer that is not known")
        return issuer.check(token)


class Tokens:
    """Checks tokens of one issuer for one audience."""

    def __init__(
        self, issuer: str, audience: str, keys: Callable[[], list[Key]], claims: Claims = SUBJECT
    ) -> None:
        self._claims = claims
        self.issuer = issuer
        self._audience = audience
        self._keys = keys
        self.unknown_key: Callable[[], None] = lambda: None
        """A callback for a token that names a key that is not there: there may be new ones."""

    def check(self, token: str) -> Bearer:
        """Return the bearer of a token. Raises BadLogin."""
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, RecursionError) as error:
            raise BadLogin(f"no token: {error}") from None
        name, algorithm = header.get("kid"), header.get("alg")
        keys = [key for key in self._keys() if name is None or key.name == name]
        if not keys:
            self.unknown_key()
            raise BadLogin("a token that is signed with a key that is not known")
        reason = "no key is for its algorithm"
        for key in [key for key in keys if algorithm in key.algorithms][:_TRIED_MAX]:
            try:
                return self._checked(token, key)
            except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
                reason = str(error)
        raise BadLogin(f"a token that does not hold: {reason}")

    def _checked(self, token: str, key: Key) -> Bearer:
        claims = jwt.decode(
            token, key.key, algorithms=key.algorithms, issuer=self.issuer,
            audience=self._audience, leeway=_LEEWAY_S,
            options={"require": _CLAIMS, "enforce_minimum_key_length": True},
        )  # fmt: skip
        name = _claim(claims, self._claims.principal)
        issued, expires = claims["iat"], claims["exp"]
        for time_s in (issued, expires):
            if isinstance(time_s, bool) or not isinstance(time_s, int | float):
                raise ValueError("a time that is no number")
        if not 0 < expires - issued <= _LIFETIME_S_MAX:
            raise ValueError("it is for too long a time")
        if not isinstance(name, str) or not name or "\0" in name or len(name) > 1024:
            raise ValueError(f"its {self._claims.principal} is no name")
        name.encode()  # half of a surrogate pair is no text
        if (missing := self._claims.missing(claims)) is not None:
            raise ValueError(f"it has not the scope {missing}")
        return Bearer(self._claims.named(name), float(expires))


class Exchange:
    """One exchange. `bearer` is who it is once a `step` has returned an empty answer."""

    def __init__(self, tokens: Checks) -> None:
        self._tokens = tokens
        self.refusal = ""
        """The reason of the failure, once it has failed."""
        self.bearer: Bearer | None = None

    def step(self, message: bytes) -> bytes:
        """Return the answer.

        Raises BadLogin; the first time that is an answer that the client is due.
        """
        if self.refusal:
            raise BadLogin(self.refusal)
        try:
            self.bearer = self._read(message)
        except BadLogin as error:
            self.refusal = str(error)
            return INVALID
        return b""

    def _read(self, message: bytes) -> Bearer:
        if len(message) > TOKEN_BYTES_MAX:
            raise BadLogin(f"a message of {len(message)} bytes")
        found = _MESSAGE.fullmatch(message)
        if found is None:
            raise BadLogin("a message that is not OAUTHBEARER's")
        fields = dict(part.split(b"=", 1) for part in found[2].split(b"\x01") if part)
        scheme, _, token = fields.get(b"auth", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not token.isascii():
            raise BadLogin("a message without a bearer token")
        bearer = self._tokens.check(token.strip().decode())
        if found[1] and found[1] != bearer.name.encode():
            raise BadLogin("somebody else to be authorized as")
        return bearer
