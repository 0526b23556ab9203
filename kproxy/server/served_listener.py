"""One listener of a server: what its connections have in common."""

from collections.abc import Iterable, Mapping
from time import monotonic

import structlog

from kproxy.common.errors import CannotStart
from kproxy.config.listeners import PLAIN, ListenerConfig
from kproxy.security.certificates import BadCertificate, PrincipalRules
from kproxy.security.jwks import KeySet
from kproxy.security.login import Mechanisms
from kproxy.security.mechanisms import Users, offered
from kproxy.security.oauth import Claims, Issuers, Tokens
from kproxy.security.tls import Tls
from kproxy.server.admission import Admission
from kproxy.server.attempts import Attempts

_log = structlog.get_logger()

_ANY = 1 << 30
_KEYS_S = 10.0
_LOCAL = ("127.", "localhost", "::1")


class ServedListener:
    """A listener, its certificate, the names of who shows one, and how clients log in."""

    def __init__(
        self, config: ListenerConfig | None = None, admission: Admission | None = None,
        prefixes: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        """Read the listener's files. Raises CannotStart: a file or a rule is not sound.

        `prefixes`: those of the issuers of all listeners.
        """
        self.name = config.name if config else ""
        self.config = config
        self.tls: Tls | None = None
        self.rules: PrincipalRules | None = None
        self.mechanisms: Mechanisms = {}
        self._prefixes = prefixes
        self._keys: list[KeySet] = []
        self.attempts = Attempts()
        admission = admission or Admission(_ANY, _ANY)
        self.room = admission.room(logins=config is not None and (config.tls or config.sasl))
        if config is None:
            return
        if config.tls:
            self.tls = Tls(config)
        if config.client_ca is not None:
            try:
                self.rules = PrincipalRules(config.principal_rules)
            except BadCertificate as error:
                raise CannotStart(f"principal_rules of listener {self.name}: {error}") from None
        self._keys = [KeySet(one.jwks) for one in config.issuers]

    def ask_for_keys(self) -> None:
        """Begin to read the keys of issuers, and go on with that now and then."""
        for keys in self._keys:
            keys.start()

    def wait_for_keys(self, until_s: float) -> None:
        """Wait until each issuer has answered once; no longer than that, by the monotonic clock."""
        for keys in self._keys:
            keys.wait(max(0.0, until_s - monotonic()))

    def open(self, users: Users) -> None:
        """Open for clients. Raises CannotStart: there is no way to log in."""
        config = self.config
        assert config is not None
        checks: list[Tokens] = []
        for issuer, keys in zip(config.issuers, self._keys, strict=True):
            claims = Claims(
                issuer.principal_claim, issuer.scope_claim, issuer.scopes, issuer.principal_prefix,
                self._prefixes,
            )  # fmt: skip
            checks.append(Tokens(issuer.issuer, issuer.audience, keys.keys, claims))
            checks[-1].unknown_key = keys.want
        tokens = checks[0] if len(checks) == 1 else Issuers(checks) if checks else None
        self.mechanisms = offered(config.sasl_mechanisms, users, tokens)
        if config.sasl and not self.mechanisms:
            raise CannotStart(f"listener {self.name} offers no mechanism to log in by")

    @property
    def sasl(self) -> bool:
        """Whether clients have to log in."""
        return self.config is not None and self.config.sasl

    def warn_where_open(self) -> None:
        """Warn in one line if anyone who reaches the port is let in, or may hear passwords."""
        config = self.config
        assert config is not None
        if config.address[0].startswith(_LOCAL):
            return
        if PLAIN in config.sasl_mechanisms and not config.tls:
            _log.warning(
                "listener_hears_passwords", listener=self.name, listen=config.listen,
                hint="PLAIN sends them as they are: let the protocol be SASL_SSL",
            )  # fmt: skip
        if not config.sasl and config.client_auth != "required":
            _log.warning(
                "listener_unprotected", listener=self.name, listen=config.listen,
                hint="every client that reaches it reads, writes and deletes all queues, unless"
                " authorizer is acl; see Security in README",
            )  # fmt: skip

    def look_after(self, now_s: float) -> None:
        """Read files again that have changed. `now_s`: since 1970."""
        if self.tls is not None:
            self.tls.reload_where_changed()
            self.tls.tell_expiry(now_s)

    def reload(self) -> None:
        """Read certificates again, and keys of tokens."""
        if self.tls is not None:
            self.tls.reload()
        for keys in self._keys:
            keys.reload()

    def close(self) -> None:
        for keys in self._keys:
            keys.close()

    def standing(self) -> Mapping[str, float]:
        """Return when its certificate ends, in seconds since 1970; empty without one."""
        return {} if self.tls is None else {self.name: self.tls.expires_s}


def served_listeners(
    configs: Iterable[ListenerConfig], admission: Admission
) -> list[ServedListener]:
    """Return the listeners of a server. Raises CannotStart.

    Issuers are asked for their keys side by side: one that does not answer keeps nobody waiting for
    the others, and the start no longer than `_KEYS_S`.
    """
    configs = list(configs)
    prefixes = frozenset(issuer.principal_prefix for one in configs for issuer in one.issuers)
    found = [ServedListener(one, admission, prefixes) for one in configs]
    for listener in found:
        listener.ask_for_keys()
    until_s = monotonic() + _KEYS_S
    for listener in found:
        listener.wait_for_keys(until_s)
    return found


ANY_LISTENER = ServedListener()
"""The listener of a connection that belongs to none: tests'."""
