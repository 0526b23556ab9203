"""The rights of a route: those of its setter, at each use. Settings keep who that was."""

from collections.abc import Mapping

from kproxy.metadata.redrive_settings import read_target
from kproxy.metadata.routing import read_template
from kproxy.metadata.setting import SET_BY
from kproxy.security.acls import CLUSTER_NAME, Op, Resource
from kproxy.security.behalf import Behalf, asked_for_rights, signer
from kproxy.security.permits import Permits
from kproxy.virtual.folds.redrives import TO as REDRIVE_TO
from kproxy.virtual.folds.route_definitions import FROM, TO, UNROUTABLE


def may_read(permits: Permits, values: Mapping[str, str], name: str = "") -> bool:
    """Return whether records may come from there, by the settings of a route's definer `name`."""
    source = values.get(FROM)
    if name and values.get(REDRIVE_TO) and not permits.topic(Op.READ, name):
        return False
    return not source or permits.topic(Op.READ, source)


def may_write(permits: Permits, values: Mapping[str, str]) -> bool:
    """Return whether records may go there; and whether queues may be made there."""
    allowed = True
    if template := values.get(TO):
        beginning = read_template(template).prefix
        allowed = permits.topics(Op.WRITE, beginning)
        if not permits.sees(Op.CREATE, Resource.CLUSTER, CLUSTER_NAME):
            allowed = allowed and permits.topics(Op.CREATE, beginning)
    if target := values.get(REDRIVE_TO):
        queue, beginning = read_target(target)
        if queue:
            allowed = allowed and permits.topic(Op.WRITE, queue) and permits.may_create(queue)
        else:
            allowed = allowed and permits.topics(Op.WRITE, beginning)
            if not permits.sees(Op.CREATE, Resource.CLUSTER, CLUSTER_NAME):
                allowed = allowed and permits.topics(Op.CREATE, beginning)
    if other := values.get(UNROUTABLE):
        allowed = allowed and permits.topic(Op.WRITE, other) and permits.may_create(other)
    return allowed


def why_forbidden(behalf: Behalf, values: Mapping[str, str], name: str) -> str | None:
    """Return why a route passes nothing on now; None: it may.

    A route that was set while nobody was asked for rights, or by an older kproxy, goes on.
    """
    signature = values.get(SET_BY)
    made = behalf.mutations(signature)
    if (values.get(TO) or values.get(REDRIVE_TO)) and made.wait:
        return f"{signer(signature).principal} has made as many queues as it may for now"
    if not asked_for_rights(signature):
        return None
    permits = behalf.permits(signature)
    if permits.all or (may_read(permits, values, name) and may_write(permits, values)):
        return None
    who = signer(signature).principal
    return f"{who}, who has set the route of {name}, may not read or write there any more"
