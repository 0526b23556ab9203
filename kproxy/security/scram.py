"""SCRAM (RFC 5802, RFC 7677), the server's side and the client's. Bytes in, bytes out; no I/O.

The server keeps no password: a salt, how often it was hashed, and two keys. Passwords are raw
UTF-8, as Kafka has them. An unknown user has a salt as well, always the same one, so that no answer
tells which users exist. Nothing is read before its length is checked.
"""

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16_384
MESSAGE_BYTES_MAX = 4096
_NONCE_BYTES = 18
_SALT_BYTES = 24
_TEXT = b"0123456789abcdefghijklmnopqrstuvwxyz"
_SALT_BYTES_MAX = 1024


class BadLogin(Exception):
    """A client is not who it says, or says it wrongly. The message is for the log alone.

    `told`: what the client is told; empty: what all mechanisms say.
    """

    def __init__(self, message: str, told: str = "") -> None:
        super().__init__(message)
        self.told = told


class Shape(NamedTuple):
    """The part of credentials that anybody may see, and the time that checks take."""

    iterations: int
    salt_bytes: int
    salt_is_text: bool  # as Kafka's tools make it: digits and small letters


class Credentials(NamedTuple):
    """The stored form of a password."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    @property
    def shape(self) -> Shape:
        return Shape(self.iterations, len(self.salt), not self.salt.strip(_TEXT))

    def value(self) -> dict[str, Any]:
        """Return the value that a row has."""
        return {
            "salt": _text(self.salt), "iterations": self.iterations,
            "stored_key": _text(self.stored_key), "server_key": _text(self.server_key),
        }  # fmt: skip

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> "Credentials":
        """Decode a row's value. Raises ValueError, KeyError: no kproxy has written it."""
        keys = (value["salt"], value["stored_key"], value["server_key"])
        salt, stored, server = (base64.b64decode(one, validate=True) for one in keys)
        return cls(salt, int(value["iterations"]), stored, server)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def salted(mechanism: str, password: bytes, salt: bytes, iterations: int) -> bytes:
    """Hash a password: 1.6 ms with 4096 iterations of SHA-256, 15 with 16384 of SHA-512."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password, salt, iterations)


def of_salted(mechanism: str, hashed: bytes, salt: bytes, iterations: int) -> Credentials:
    """Return the credentials of a password that somebody else has hashed."""
    name = HASHES[mechanism]
    client_key = hmac.digest(hashed, b"Client Key", name)
    stored = hashlib.new(name, client_key).digest()
    return Credentials(salt, iterations, stored, hmac.digest(hashed, b"Server Key", name))


def of_password(
    mechanism: str, password: bytes, salt: bytes | None = None, iterations: int = ITERATIONS_MIN
) -> Credentials:
    """Return the credentials of a password."""
    salt = os.urandom(_SALT_BYTES) if salt is None else salt
    return of_salted(mechanism, salted(mechanism, password, salt, iterations), salt, iterations)


OURS = Shape(ITERATIONS_MIN, _SALT_BYTES, salt_is_text=False)


def nobodys(mechanism: str, user: str, secret: bytes, shape: Shape = OURS) -> Credentials:
    """Return fake credentials for an unknown user.

    No password matches, and the salt is stable, so clients cannot tell that the user does not
    exist.
    """
    seed = hmac.digest(secret, f"{mechanism} {user}".encode(), "sha256")
    salt = hashlib.shake_256(seed).digest(shape.salt_bytes)
    if shape.salt_is_text:
        salt = bytes(_TEXT[byte % len(_TEXT)] for byte in salt)
    size = hashlib.new(HASHES[mechanism]).digest_size
    return Credentials(salt, shape.iterations, os.urandom(size), os.urandom(size))


def matches(mechanism: str, password: bytes, credentials: Credentials) -> bool:
    """Whether a password is the one that credentials were made of. As slow as `salted`."""
    made = of_password(mechanism, password, credentials.salt, credentials.iterations)
    return hmac.compare_digest(made.stored_key, credentials.stored_key)


def _decoded(token: bytes) -> str:
    if len(token) > MESSAGE_BYTES_MAX:
        raise BadLogin(f"a message of {len(token)} bytes")
    try:
        text = token.decode()
    except UnicodeDecodeError:
        raise BadLogin("a message that is not UTF-8") from None
    if "\0" in text:
        raise BadLogin("a message with a zero byte")
    return text


def _binary(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadLogin("what is not base64") from None


def _value(part: str, name: str) -> str:
    if not part.startswith(name + "="):
        raise BadLogin(f"a message without {name}=")
    return part[2:]


def _name(text: str) -> str:
    """Decode a saslname: `,` and `=` are escaped, and nothing else is."""
    name = text.replace("=2C", ",").replace("=3D", "=")
    if not name or text.replace("=2C", "").replace("=3D", "").count("="):
        raise BadLogin("a user name that is empty or not escaped")
    return name


def _escaped(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


class Server:
    """One exchange. `user` is who it is once the second `step` has returned."""

    def __init__(
        self, mechanism: str, find: Callable[[str], Credentials], nonce: str | None = None
    ) -> None:
        """Take `find`, which returns a user's credentials, or `nobodys`."""
        self._mechanism = mechanism
        self._find = find
        self._nonce = nonce or _text(os.urandom(_NONCE_BYTES))
        self.credentials: Credentials | None = None
        """The credentials that the user is checked by, once the first `step` has found them."""
        self._binding = self._first = ""
        self.user = ""

    def step(self, token: bytes) -> bytes:
        """Return the answer to a message. Raises BadLogin."""
        text = _decoded(token)
        return self._begun(text) if self.credentials is None else self._ended(text)

    def _begun(self, text: str) -> bytes:
        parts = text.split(",", 2)
        if len(parts) != 3 or parts[0] not in ("n", "y"):
            raise BadLogin("a message that asks for channel binding, or none at all")
        flag, authorized, bare = parts
        fields = bare.split(",")
        if len(fields) < 2:
            raise BadLogin("a message without a nonce")
        self.user = _name(_value(fields[0], "n"))
        nonce = _value(fields[1], "r")
        if not nonce or not all("!" <= one <= "~" for one in nonce):
            raise BadLogin("a nonce that is empty or not printable")
        if len(fields) > 2:
            raise BadLogin("extensions: there are no delegation tokens here")
        if authorized and _name(_value(authorized, "a")) != self.user:
            raise BadLogin("somebody else to be authorized as")
        self._binding = _text(f"{flag},{authorized},".encode())
        self._nonce = nonce + self._nonce
        self.credentials = found = self._find(self.user)
        answer = f"r={self._nonce},s={_text(found.salt)},i={found.iterations}"
        self._first = f"{bare},{answer}"
        return answer.encode()

    def _ended(self, text: str) -> bytes:
        assert self.credentials is not None
        without_proof, comma, proof_text = text.rpartition(",p=")
        fields = without_proof.split(",")
        if not comma or len(fields) < 2:
            raise BadLogin("a message without a proof")
        if _value(fields[0], "c") != self._binding:
            raise BadLogin("another channel binding than at first")
        if not hmac.compare_digest(_value(fields[1], "r").encode(), self._nonce.encode()):
            raise BadLogin("another nonce than at first")
        proof = _binary(proof_text)
        name = HASHES[self._mechanism]
        message = f"{self._first},{without_proof}".encode()
        signature = hmac.digest(self.credentials.stored_key, message, name)
        if len(proof) != len(signature):
            raise BadLogin("a proof of another length")
        key = hashlib.new(name, _xor(proof, signature)).digest()
        if not hmac.compare_digest(key, self.credentials.stored_key):
            raise BadLogin("an unknown user or a wrong password")
        return b"v=" + _text(hmac.digest(self.credentials.server_key, message, name)).encode()


class Client:
    """The other end, for commands of ours: `first`, then `final`, then `check`."""

    def __init__(self, mechanism: str, user: str, password: str, nonce: str | None = None) -> None:
        self._mechanism = mechanism
        self._password = password.encode()
        self._nonce = nonce or _text(os.urandom(_NONCE_BYTES))
        self._bare = f"n={_escaped(user)},r={self._nonce}"
        self._expected = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, challenge: bytes) -> bytes:
        """Return the last message.

        Raises BadLogin: the server does not speak SCRAM, or would have it for cheap.
        """
        text = _decoded(challenge)
        fields = text.split(",")
        if len(fields) < 3:
            raise BadLogin("an answer without a salt")
        nonce, salt = _value(fields[0], "r"), _binary(_value(fields[1], "s"))
        count = _value(fields[2], "i")
        iterations = int(count) if count.isdecimal() and len(count) < 8 else 0
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise BadLogin("another nonce than at first")
        if not ITERATIONS_MIN <= iterations <= 1_000_000 or len(salt) > _SALT_BYTES_MAX:
            raise BadLogin(f"{iterations} iterations")
        name = HASHES[self._mechanism]
        hashed = salted(self._mechanism, self._password, salt, iterations)
        without_proof = f"c=biws,r={nonce}"
        message = f"{self._bare},{text},{without_proof}".encode()
        key = hmac.digest(hashed, b"Client Key", name)
        signature = hmac.digest(hashlib.new(name, key).digest(), message, name)
        self._expected = hmac.digest(hmac.digest(hashed, b"Server Key", name), message, name)
        return f"{without_proof},p={_text(_xor(key, signature))}".encode()

    def check(self, answer: bytes) -> None:
        """Raise BadLogin if the server does not know the password either."""
        if not hmac.compare_digest(_binary(_value(_decoded(answer), "v")), self._expected):
            raise BadLogin("the server does not know the password: is it the right one?")
