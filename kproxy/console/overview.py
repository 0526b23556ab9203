"""The overview: the workers, the level in force, the groups by state."""

from collections import Counter

from kproxy.console.pages import Asked, Page
from kproxy.tools.upgrade import known


def overview(asked: Asked) -> Page:
    """Return the page at the root."""
    client = asked.client
    cluster = client.cluster()
    workers = [known(client, node) for node in sorted(client.nodes())]
    listed = client.groups()
    values = {
        "cluster": cluster.cluster_id, "controller": cluster.controller_id, "workers": workers,
        "disks": {worker.node: client.disk(worker.node) for worker in workers},
        "groups": len(listed),
        "states": sorted(Counter((one.group_type, one.group_state) for one in listed).items()),
    }  # fmt: skip
    return Page("overview.html", values)
