"""Settings of who may what; `kproxy.config.server` has the rest."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field


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


class SecurityConfig(BaseModel):
    """Names as Kafka's brokers have them."""

    authorizer: Literal["none", "acl"] = Field(
        "none", description="acl: access rules say who may what; none: anybody may do anything"
    )
    super_users: Annotated[str, BeforeValidator(_joined), AfterValidator(_principals)] = Field(
        "", description="principals that may do anything: User:alice;User:bob"
    )
    allow_everyone_if_no_acl_found: bool = Field(
        False, description="resources that no access rule names are everybody's"
    )

    @property
    def super_principals(self) -> frozenset[str]:
        return frozenset(filter(None, self.super_users.split(";")))
