"""A connection whose client says who it is before anything else (SASL).

Until it has logged in, nothing but ApiVersions, SaslHandshake and SaslAuthenticate is taken, in
small frames, and not for long. It logs in again before its login runs out, or is closed at the next
request. A client that fails waits for the answer, longer each time, and is closed.
"""

import asyncio
import math
import time
from collections.abc import Collection, Mapping
from typing import ClassVar

import anyio
import structlog

from kproxy.common.errors import Code
from kproxy.config.listeners import PLAIN
from kproxy.fetching.streamed_response import StreamedResponse
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import RequestHeader, decode_body, decode_header, encode
from kproxy.protocol.frames import Frame
from kproxy.protocol.varint import Malformed
from kproxy.security.login import Identity, Login, Step
from kproxy.security.scram import BadLogin
from kproxy.server.connection import Connection, ConnectionLimiter
from kproxy.server.dispatch import Accepted, answer
from kproxy.server.served_listener import ServedListener
from kproxy.worker.worker import Worker

_log = structlog.get_logger()

LOGIN_BYTES_MAX = 64 << 10
"""A frame of who has not logged in: a token of 16 KiB has room."""
_VERSIONS = {ApiKey.SASL_HANDSHAKE: 1, ApiKey.SASL_AUTHENTICATE: 2}
_ELEMENTS_MAX = 100
_RAW_HEADER = RequestHeader(ApiKey.SASL_AUTHENTICATE, 0, 0, None, 0)
_SHORTEST_TOKEN = 1
_CODE, _NO_ERROR = slice(8, 10), b"\0\0"
"""The place of the error code in an answer to ApiVersions, behind length and correlation id."""


class LoginConnection(Connection):
    """A connection that serves one client once it has logged in."""

    keys: ClassVar[dict[bytes, ApiKey]] = {
        int(key).to_bytes(2, "big"): key
        for key in (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
    }

    def __init__(
        self, worker: Worker, limiter: ConnectionLimiter, listener: ServedListener
    ) -> None:
        super().__init__(worker, limiter, listener)
        self._login = Login(listener.mechanisms)
        self._versions_told = False
        self._amid = self._blamed = False  # a login: some of it was checked; it has failed
        self._logged_in_until = math.inf  # by the monotonic clock
        self._deadline = self._monotonic() + worker.config.login_ms_max / 1000
        self._pipeline.expect(LOGIN_BYTES_MAX)

    @property
    def mechanism(self) -> str:
        """The mechanism by which the client has logged in; empty before."""
        return self._login.mechanism if self._login.done else ""

    def one_of(self, changed: Mapping[str, Collection[str]]) -> str | None:
        """Return the user who has logged in, if with one of these mechanisms; PLAIN may have used
        any.
        """
        identity, mechanism = self._login.identity, self._login.mechanism
        mechanisms = changed.get(identity.name) if identity is not None else None
        if identity is None or not mechanisms:
            return None
        return identity.name if mechanism == PLAIN or mechanism in mechanisms else None

    def expire(self) -> None:
        if not self._login.done and self._monotonic() > self._deadline:
            self._counters.connections_ended["login_timed_out"] += 1
            _log.warning("login_timed_out", peer=self._peer, listener=self.peer.listener)
            self.abort()
            return
        super().expire()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._login.ip = self.ip

    def eof_received(self) -> bool:
        if not self._login.done:
            return False  # nobody waits for the answer: it is not to stand in line for it
        return super().eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if self._amid and not self._blamed:  # it may have learned what it came for
            self._blame("it left amid its login")

    # -- taking requests in

    def accept(self, frame: Frame) -> Accepted:
        login = self._login
        if login.raw:
            return Accepted(_RAW_HEADER, len(frame), frame=bytes(frame))
        key = self.keys.get(bytes(frame[:2]))
        if key in _VERSIONS:
            return self._taken(frame)
        if login.done:
            if login.under_way:
                raise Malformed("a request amid a login")
            if self._monotonic() > self._logged_in_until:
                raise Malformed("the login has run out, and the client did not log in again")
            return super().accept(frame)
        if key is None or self._versions_told or login.under_way:
            raise Malformed("a request before the login")
        return super().accept(frame)

    def _taken(self, frame: Frame) -> Accepted:
        """Take a step of a login. Raises Malformed."""
        if len(frame) > LOGIN_BYTES_MAX:
            raise Malformed(f"a step of a login has {len(frame)} bytes")
        self._counters.requests += 1
        self._counters.request_bytes += len(frame)
        header = decode_header(frame)
        if not 0 <= header.api_version <= _VERSIONS[ApiKey(header.api_key)]:
            raise Malformed(f"API key {header.api_key} version {header.api_version}")
        return Accepted(header, len(frame), frame=bytes(frame))

    # -- answering

    async def _respond(
        self, worker: Worker, request: Accepted
    ) -> bytes | bytearray | StreamedResponse:
        header = request.header
        try:
            if header is _RAW_HEADER:
                return await self._token(request)
            if header.api_key == ApiKey.SASL_HANDSHAKE:
                return self._handshake(request)
            if header.api_key == ApiKey.SASL_AUTHENTICATE:
                return await self._authenticate(request)
        except BadLogin as error:  # out of turn: there is nothing to answer
            self._failed(str(error))
            raise Malformed(f"login: {error}") from None
        response = await answer(worker, request)
        if header.api_key == ApiKey.API_VERSIONS and isinstance(response, bytes | bytearray):
            self._versions_told = self._versions_told or response[_CODE] == _NO_ERROR
        return response

    def _handshake(self, request: Accepted) -> bytes:
        header = request.header
        mechanism = decode_body(readable(request), header, _ELEMENTS_MAX).mechanism
        if self._login.done and math.isinf(self._logged_in_until):
            code = Code.ILLEGAL_SASL_STATE  # a login is for good, as with Kafka
        else:
            code = self._login.handshake(mechanism, header.api_version, self._monotonic())
        self._counters.answer(header.api_key, code)
        if code == Code.UNSUPPORTED_SASL_MECHANISM:
            self._failed("a mechanism that is not offered", mechanism[:100])
            self.stop_reading()
        elif self._login.raw:
            self._pipeline.expect(LOGIN_BYTES_MAX, _SHORTEST_TOKEN)
        values = {"error_code": code, "mechanisms": self._login.offered}
        return encode(header.api_key, header.api_version, header.correlation_id, values)

    async def _authenticate(self, request: Accepted) -> bytes:
        header = request.header
        token = decode_body(readable(request), header, _ELEMENTS_MAX).auth_bytes
        if not self._login.under_way:
            if not self._login.done:
                raise BadLogin("a token without a handshake")
            values = _refused(Code.ILLEGAL_SASL_STATE, "a token without a handshake")
        else:
            values = await self._stepped(bytes(token))
        self._counters.answer(header.api_key, int(values["error_code"]))  # type: ignore[call-overload]
        return encode(header.api_key, header.api_version, header.correlation_id, values)

    async def _stepped(self, token: bytes) -> dict[str, object]:
        mechanism = self._login.mechanism
        try:
            step = await self._checked(token)
        except BadLogin as error:
            await self._punish(str(error))
            self.stop_reading()
            return _refused(
                Code.SASL_AUTHENTICATION_FAILED,
                error.told
                or "Authentication failed during authentication due to invalid credentials with"
                f" SASL mechanism {mechanism}",
            )
        lifetime_ms = 0 if step.identity is None else self._let_in(step.identity)
        return {
            "error_code": Code.NONE, "error_message": None, "auth_bytes": step.token,
            "session_lifetime": lifetime_ms,
        }  # fmt: skip

    async def _token(self, request: Accepted) -> bytes:
        """Answer a token without a header: so is the answer, and a refusal is silence."""
        try:
            step = await self._checked(readable(request))
        except BadLogin as error:
            await self._punish(str(error))
            self.stop_reading()
            return b""
        if step.identity is not None:
            self._let_in(step.identity)
        return len(step.token).to_bytes(4, "big") + step.token

    async def _checked(self, token: bytes) -> Step:
        """Return the answer to a token. A refusal has waited. Raises BadLogin."""
        async with self._listener.attempts.turn(self.ip):
            self._amid = True
            step = await self._login.authenticate(token)
        if step.refusal:
            await self._punish(step.refusal)
        return step

    def _let_in(self, identity: Identity) -> int:
        """Let in a client that has logged in; return for how many milliseconds; 0: for good."""
        again = math.isfinite(self._logged_in_until)
        self._amid = False
        self.peer = self.peer._replace(principal=f"User:{identity.name}")
        assert self.place is not None
        self.place.known(self.peer.principal)
        self._known()
        reauth_ms = self._worker.config.connections_max_reauth_ms
        lifetimes = [reauth_ms] if reauth_ms else []
        if identity.expires_s is not None:
            lifetimes.append(max(1, int((identity.expires_s - time.time()) * 1000)))
        lifetime_ms = min(lifetimes, default=0)
        if lifetimes:
            self._logged_in_until = self._monotonic() + lifetime_ms / 1000
        self._pipeline.expect(self._worker.config.frame_bytes_max)
        self._counters.logins[self._login.mechanism, "again" if again else "in"] += 1
        _log.info(
            "login", peer=self._peer, listener=self.peer.listener, principal=self.peer.principal,
            mechanism=self._login.mechanism, again=again,
        )  # fmt: skip
        return lifetime_ms

    async def _punish(self, reason: str) -> None:
        """Wait before a refusal is told; once, in however many steps that is."""
        if not self._blamed:
            delay_s = self._blame(reason)
            self._deadline += delay_s  # it is not the client's
            await anyio.sleep(delay_s)

    def _blame(self, reason: str) -> float:
        self._blamed = True
        self._failed(reason)
        return self._listener.attempts.blame(self.ip)

    def _failed(self, reason: str, mechanism: str = "") -> None:
        self._counters.logins[self._login.mechanism or "none", "failed"] += 1
        _log.warning(
            "login_failed", peer=self._peer, listener=self.peer.listener, user=self._login.user,
            mechanism=mechanism or self._login.mechanism, reason=reason,
        )  # fmt: skip


def readable(request: Accepted) -> bytes:
    assert isinstance(request.frame, bytes)
    return request.frame


def _refused(code: Code, message: str) -> dict[str, object]:
    return {
        "error_code": code, "error_message": message, "auth_bytes": b"", "session_lifetime": 0,
    }  # fmt: skip
