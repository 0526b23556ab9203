"""Settings of who may what; `kproxy.config.server` has the rest."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, NonNegativeInt

from kproxy.config.setting import Ms, Section, setting


def _joined(given: Any) -> Any:
    """Join a list, as a settings file may have it, to one text."""
    if isinstance(given, list | tuple) and all(isinstance(one, str) for one in given):
        return ";".join(given)
    return given


def _principals(text: str) -> str:
    for one in filter(None, text.split(";")):
        if not re.fullmatch(r"[A-Za-z]+:.+", one):
            raise ValueError("write principals as User:alice;User:bob")
    return text


class SecurityConfig(Section, title="Security"):
    """Names as Kafka's brokers have them."""

    authorizer: Literal["none", "acl"] = setting(
        "none", "acl: access rules say who may what; none: anybody may do anything"
    )
    super_users: Annotated[str, BeforeValidator(_joined), AfterValidator(_principals)] = setting(
        "", "principals that may do anything: User:alice;User:bob", value="PRINCIPAL;…"
    )
    allow_everyone_if_no_acl_found: bool = setting(
        False, "resources that no access rule names are everybody's"
    )
    login_ms_max: Ms = setting(
        10_000, "longest that a TLS handshake may take, and a login behind it"
    )
    connections_max_reauth_ms: NonNegativeInt = setting(
        0,
        "how long a login lasts; clients then log in again, or are closed; 0: as long as the"
        " connection",
    )

    @property
    def super_principals(self) -> frozenset[str]:
        return frozenset(filter(None, self.super_users.split(";")))
