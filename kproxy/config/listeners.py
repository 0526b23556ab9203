"""The addresses that a worker listens at, and the clients let in there: `[[listeners]]`.

Names of protocols, mechanisms and of what may be asked of certificates are Kafka's.
"""

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from kproxy.config.issuers import ISSUERS_MAX, OauthIssuer, check_issuer

PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"
PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
SCRAM_SHA_256, SCRAM_SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
_MAIN = "PLAINTEXT"
_ANYWHERE = ("0.0.0.0", "::")
_LISTENERS_MAX = 16


def checked_address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ValueError("write it as HOST:PORT, for example 127.0.0.1:9092")
    return text


def split_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


Address = Annotated[str, AfterValidator(checked_address)]


class ListenerConfig(BaseModel):
    """One listener."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(_MAIN, description="its name in answers and logs")
    listen: Address = Field(description="address to accept connections on")
    advertise: Address | None = Field(
        None, description="address that its clients are told to use [default: the listen address]"
    )
    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="whether it is encrypted (SSL), and clients log in (SASL)"
    )
    certificate: Path | None = Field(None, description="certificate chain, as PEM")
    private_key: Path | None = Field(None, description="its key, where the chain has none")
    client_ca: Path | None = Field(None, description="the issuer of clients' certificates, as PEM")
    client_auth: Literal["none", "requested", "required"] = Field(
        "none", description="whether clients show a certificate"
    )
    principal_rules: tuple[str, ...] = Field(
        (), description="names of clients by their certificates' (ssl.principal.mapping.rules)"
    )
    sasl_mechanisms: tuple[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"], ...
    ] = Field((), description="how clients may log in")
    oauth_jwks: str | None = Field(
        None, description="keys that tokens are signed with: a file or an https address"
    )
    oauth_issuer: str | None = Field(None, description="the issuer of tokens (iss)")
    oauth_audience: str | None = Field(None, description="for whom they are signed (aud)")
    oauth_principal_claim: str = Field("sub", description="the claim that says who it is")
    oauth_scope_claim: str = Field(
        "scope", description="the claim of scopes: a text with spaces between, or a list"
    )
    oauth_scopes: tuple[str, ...] = Field((), description="scopes that a token must all have")
    oauth_issuers: tuple[OauthIssuer, ...] = Field(
        (), description="more issuers, or all of them: tables of the settings below"
    )

    @property
    def tls(self) -> bool:
        return self.protocol in (SSL, SASL_SSL)

    @property
    def sasl(self) -> bool:
        return self.protocol in (SASL_PLAINTEXT, SASL_SSL)

    @property
    def address(self) -> tuple[str, int]:
        return split_address(self.listen)

    @property
    def advertised(self) -> tuple[str, int]:
        return split_address(self.advertise or self.listen)

    def beside(self, number: int) -> "ListenerConfig":
        """Return the listener of another worker of this machine: ports count up; port 0 stays."""
        host, port = self.address
        name, advertised = self.advertised
        listen = f"{_bracketed(host)}:{port + number if port else 0}"
        advertise = f"{_bracketed(name)}:{(advertised or port) + number}"
        return self.model_copy(update={"listen": listen, "advertise": advertise})

    @field_validator("name")
    @classmethod
    def _named(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
            raise ValueError("a name is up to 64 ASCII letters, digits, '.', '_' and '-'")
        return name

    @field_validator("principal_rules")
    @classmethod
    def _rules(cls, rules: tuple[str, ...]) -> tuple[str, ...]:
        if any(len(rule) > 1000 for rule in rules) or len(rules) > 100:
            raise ValueError("there may be 100 rules of 1000 characters")
        return rules

    @model_validator(mode="after")
    def _advertisable(self) -> Self:
        if self.advertised[0] in _ANYWHERE:
            raise ValueError(
                f"clients cannot connect to {self.advertised[0]}: say where they can (advertise)"
            )
        return self

    @model_validator(mode="after")
    def _encrypted(self) -> Self:
        if self.tls and self.certificate is None:
            raise ValueError(f"{self.protocol} needs a certificate")
        if not self.tls:
            for name in ("certificate", "private_key", "client_ca"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{self.protocol} has no use for {name}")
        if (self.client_auth == "none") != (self.client_ca is None):
            raise ValueError("client_auth and client_ca go together")
        if self.principal_rules and self.client_ca is None:
            raise ValueError("principal_rules are for clients' certificates: give client_ca")
        return self

    @model_validator(mode="after")
    def _logged_in(self) -> Self:
        if self.sasl and not self.sasl_mechanisms:
            raise ValueError(f"{self.protocol} needs sasl_mechanisms")
        if self.sasl_mechanisms and not self.sasl:
            raise ValueError(f"{self.protocol} has no use for sasl_mechanisms")
        oauth = {name: getattr(self, name) for name in _OAUTH}
        own = any(oauth.values()) or not self.model_fields_set.isdisjoint(_OAUTH_CLAIMS)
        if OAUTHBEARER not in self.sasl_mechanisms:
            if own or self.oauth_issuers:
                raise ValueError("oauth_… are for OAUTHBEARER: name it in sasl_mechanisms")
            return self
        if own or not self.oauth_issuers:
            for name, value in oauth.items():
                if not value:
                    raise ValueError(f"OAUTHBEARER needs {name}")
            claims = (self.oauth_principal_claim, self.oauth_scope_claim)
            check_issuer(str(self.oauth_jwks), claims, self.oauth_scopes)
        names = [one.issuer for one in self.issuers]
        if len(names) > ISSUERS_MAX or len(set(names)) < len(names):
            raise ValueError(f"there may be {ISSUERS_MAX} issuers of tokens, each another one")
        return self

    @property
    def issuers(self) -> tuple[OauthIssuer, ...]:
        """The issuers of tokens, the listener's own first."""
        if self.oauth_issuer is None:
            return self.oauth_issuers
        own = OauthIssuer.model_validate({
            "issuer": self.oauth_issuer, "jwks": self.oauth_jwks, "audience": self.oauth_audience,
            "principal_claim": self.oauth_principal_claim, "scope_claim": self.oauth_scope_claim,
            "scopes": self.oauth_scopes,
        })  # fmt: skip
        return (own, *self.oauth_issuers)


_OAUTH = ("oauth_jwks", "oauth_issuer", "oauth_audience")
_OAUTH_CLAIMS = ("oauth_principal_claim", "oauth_scope_claim", "oauth_scopes")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def together(listeners: tuple[ListenerConfig, ...]) -> None:
    """Raise ValueError for listeners that have in common what they must not."""
    if len(listeners) > _LISTENERS_MAX:
        raise ValueError(f"there may be {_LISTENERS_MAX} listeners")
    for one in listeners:
        if not one.address[1] or not one.advertised[1]:
            raise ValueError(f"listener {one.name} needs a port")
    for what in ("name", "listen"):
        values = [getattr(one, what) for one in listeners]
        for value in values:
            if values.count(value) > 1:
                raise ValueError(f"two listeners have the {what} {value}")
