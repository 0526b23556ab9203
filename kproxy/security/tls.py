"""TLS of one listener: its files, made into a context, and made again when they change.

A new context serves new connections, and the old one is forgotten: a certificate authority that is
taken out of the file is trusted no more. If the new files are not sound the old context stays.
"""

import ssl
import time
from pathlib import Path

import structlog

from kproxy.common.errors import CannotStart
from kproxy.config.listeners import ListenerConfig

_log = structlog.get_logger()

_AHEAD_S = 30 * 86_400
_DAY_S = 86_400
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""The ciphers of TLS 1.2 with forward secrecy. TLS 1.3 has no others."""


class Tls:
    """The context of a listener, and the files it was made from."""

    def __init__(self, listener: ListenerConfig) -> None:
        """Read the files. Raises CannotStart."""
        assert listener.certificate is not None
        self._listener = listener
        chain = listener.certificate
        self._files = [path for path in (chain, listener.private_key, listener.client_ca) if path]
        self._seen = self._state()
        self._told_at = 0.0
        self.expires_s = 0.0  # since 1970
        try:
            self.context = self._made()
        except (OSError, ValueError) as error:
            raise CannotStart(f"listener {listener.name}: {_reason(error, self._files)}") from None
        self.tell_expiry(time.time())

    def reload(self) -> None:
        """Read the files again. If they are not sound, one line says so."""
        self._seen = self._state()
        try:
            self.context = self._made()
        except (OSError, ValueError) as error:
            reason = _reason(error, self._files)
            _log.error("tls_not_reloaded", listener=self._listener.name, reason=reason)
        else:
            _log.info("tls_reloaded", listener=self._listener.name)
            self._told_at = 0.0

    def reload_where_changed(self) -> None:
        if self._state() != self._seen:
            self.reload()

    def tell_expiry(self, now_s: float) -> None:
        """Warn once a day where the certificate ends within a month."""
        if self.expires_s - now_s < _AHEAD_S and now_s - self._told_at > _DAY_S:
            self._told_at = now_s
            days = int((self.expires_s - now_s) / _DAY_S)
            _log.warning("certificate_expires", listener=self._listener.name, days=days)

    def _state(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in self._files]

    def _made(self) -> ssl.SSLContext:
        """Return a new context. Raises OSError, of which ssl.SSLError, and ValueError."""
        listener = self._listener
        assert listener.certificate is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(_CIPHERS)
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.load_cert_chain(listener.certificate, listener.private_key, password=_no_password)
        if listener.client_ca is not None:
            context.load_verify_locations(cafile=listener.client_ca)
            required = listener.client_auth == "required"
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
            # Each connection shows its certificate, but for sessions of TLS 1.2 that OpenSSL keeps
            # by their ids for two hours: Python has no switch for these. This same context verified
            # their certificate, so it may have ended since, no more.
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
        self.expires_s = expiry(listener.certificate.read_bytes())
        return context


def _no_password() -> str:
    """Refuse to give a password: OpenSSL would ask the terminal for one."""
    raise ValueError("the private key needs a password: kproxy reads none")


def expiry(chain: bytes) -> float:
    """Return when the first certificate of a chain (PEM) ends, in seconds since 1970.

    ValueError.
    """
    from cryptography import x509  # it takes 80 ms to load, and only TLS needs it

    return x509.load_pem_x509_certificates(chain)[0].not_valid_after_utc.timestamp()


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _reason(error: Exception, files: list[Path]) -> str:
    """Return the reason with the name of the file, which OpenSSL does not say."""
    if isinstance(error, ssl.SSLError) or not isinstance(error, OSError):
        names = ", ".join(map(str, files))
        return f"{names}: {error}; are they PEM files that belong together?"
    missing = next((path for path in files if _stamp(path) is None), files[0])
    return f"cannot read {missing}: {error.strerror or error}"
