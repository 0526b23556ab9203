"""The issuers of the tokens that a listener takes."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

_CLAIM_MAX, _SCOPES_MAX, _PREFIX_MAX = 256, 50, 64
ISSUERS_MAX = 16


class OauthIssuer(BaseModel):
    """An issuer, in `[[listeners.oauth_issuers]]`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    issuer: str = Field(min_length=1, description="its name (iss)")
    jwks: str = Field(
        min_length=1, description="keys that its tokens are signed with: a file or an https address"
    )
    audience: str = Field(min_length=1, description="for whom they are signed (aud)")
    principal_claim: str = Field("sub", description="the claim that says who it is")
    principal_prefix: str = Field(
        "", max_length=_PREFIX_MAX, description="put before that, so that no other issuer names it"
    )
    scope_claim: str = Field("scope", description="the claim of scopes")
    scopes: tuple[str, ...] = Field((), description="scopes that a token must all have")

    @model_validator(mode="after")
    def _sound(self) -> Self:
        check_issuer(self.jwks, (self.principal_claim, self.scope_claim), self.scopes)
        return self


def check_issuer(jwks: str, claims: tuple[str, ...], scopes: tuple[str, ...]) -> None:
    """Raise ValueError: it has no place of keys, or no claims."""
    if "://" in jwks and not jwks.startswith("https://"):
        raise ValueError("oauth_jwks is a file or an https address")
    if any(not 0 < len(claim) <= _CLAIM_MAX for claim in claims):
        raise ValueError(f"a claim has a name, of {_CLAIM_MAX} characters at most")
    if len(scopes) > _SCOPES_MAX or not all(scopes):
        raise ValueError(f"there may be {_SCOPES_MAX} oauth_scopes, and none is empty")
