"""Settings of who may what; `kproxy.config` has the rest."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field


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
    super_users: Annotated[str, AfterValidator(_principals)] = Field(
        "", description="principals that may do anything: User:alice;User:bob"
    )
    allow_everyone_if_no_acl_found: bool = Field(
        False, description="what no access rule names is everybody's"
    )

    @property
    def super_principals(self) -> frozenset[str]:
        return frozenset(filter(None, self.super_users.split(";")))
