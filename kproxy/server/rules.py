"""The rights that each API needs of its sender: a part of the API table, so that none is without.

An API is *open* to all; or needs an operation on the cluster, which is asked before its handler is
called; or names resources, of which its handler asks one by one (`request.permits`).
"""

from dataclasses import dataclass

from kproxy.common.errors import Code
from kproxy.handlers.common.refusals import Refusal
from kproxy.security.acls import CLUSTER_NAME, Op, Resource
from kproxy.worker.request import Request


@dataclass(frozen=True, slots=True)
class Rule:
    """`cluster`: any of these operations on the cluster does. Without, the handler asks, or nobody.

    `asks`: what is asked for, as docs/security.md lists it.
    """

    asks: str
    cluster: tuple[Op, ...] = ()
    refused: Refusal | None = None


OPEN = Rule("nothing")


def cluster(refused: Refusal, *ops: Op) -> Rule:
    """Return a rule: the whole of a request needs one of these operations on the cluster."""
    return Rule(" or ".join(f"{op.name} cluster" for op in ops), ops, refused)


def each(asks: str) -> Rule:
    """Return a rule: the handler asks for each resource that a request names."""
    return Rule(asks)


def refusal(rule: Rule, request: Request) -> Code | None:
    """Return why a request is refused as a whole, before its handler sees it."""
    if not rule.cluster or request.permits.all:
        return None
    permits = request.permits
    if any(permits.sees(op, Resource.CLUSTER, CLUSTER_NAME) for op in rule.cluster):
        return None
    permits.refused(rule.cluster[0], Resource.CLUSTER, CLUSTER_NAME)
    return Code.CLUSTER_AUTHORIZATION_FAILED
