"""Offsets of groups without members: set to a place, or deleted with the group."""

from kproxy.tools.changes import reason
from kproxy.tools.client import Client, Refused, checked
from kproxy.tools.groups.members import group_state
from kproxy.tools.records.offsets import Place, spans


def reset(client: Client, group: str, queue: str, place: Place) -> int:
    """Set a group's offset in each partition of a queue; return how many. Raises Refused.

    A share group starts there anew. A group with members is refused: they commit over it.
    """
    state = group_state(client, group)
    if state.members:
        raise Refused(f"group {group} has {len(state.members)} members: stop them first")
    leaders = client.leaders([queue])
    if not leaders or min(leaders.values()) < 0:
        raise Refused(f"there is no queue {queue}, or not all of it is served now")
    found = spans(client, leaders, place, None)
    if found.keys() != leaders.keys():
        raise Refused(f"{queue} is served by other workers now: ask again")
    places = {index: span.first for (_, index), span in found.items()}
    (node,) = client.by_coordinator([group])
    return (
        _shared(client, node, group, queue, places)
        if state.type == "share"
        else _committed(client, node, group, queue, places)
    )


def _committed(client: Client, node: int, group: str, queue: str, places: dict[int, int]) -> int:
    parts = [
        {"partition_index": index, "committed_offset": offset, "committed_leader_epoch": -1,
         "committed_metadata": ""}
        for index, offset in places.items()
    ]  # fmt: skip
    values = {
        "group_id": group, "generation_id_or_member_epoch": -1, "member_id": "",
        "group_instance_id": None, "topics": [{"name": queue, "partitions": parts}],
    }  # fmt: skip
    for topic in client.call(8, 8, values, node).topics:
        for one in topic.partitions:
            checked(one.error_code, f"{queue}-{one.partition_index}")
    return len(parts)


def _shared(client: Client, node: int, group: str, queue: str, places: dict[int, int]) -> int:
    parts = [{"partition_index": index, "start_offset": at} for index, at in places.items()]
    values = {"group_id": group, "topics": [{"topic_name": queue, "partitions": parts}]}
    answer = client.call(91, 0, values, node)
    checked(answer.error_code, answer.error_message or f"group {group}")
    for topic in answer.responses:
        for one in topic.partitions:
            checked(one.error_code, one.error_message or f"{queue}-{one.partition_index}")
    return len(parts)


def delete_group(client: Client, group: str) -> None:
    """Delete a group with its offsets. Raises Refused."""
    (node,) = client.by_coordinator([group])
    for one in client.call(42, 2, {"groups_names": (group,)}, node).results:
        if one.error_code:
            raise Refused(f"group {group}: {reason(int(one.error_code), None)}")
