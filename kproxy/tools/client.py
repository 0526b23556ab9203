"""A small blocking Kafka client for kproxy's own commands.

librdkafka's admin client has neither pages of queues (KIP-966) nor log directories.
"""

import json
import socket
import ssl
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from kproxy.common.errors import CannotStart, Code, KafkaError
from kproxy.protocol.codec import decode_response, encode_request
from kproxy.protocol.name_search import ALL, Matches, NameSearch
from kproxy.tools.client_settings import ClientSettings

_TIMEOUT_S = 30
_ANSWER_BYTES_MAX = 1 << 30
PAGE = 2000
"""The partitions of a page of queues."""
QUEUE, GROUP = 2, 32
"""The types of resources that have settings."""
REDRIVES = ""
"""The place of redrives among routes by the queue that defines them."""

Key = TypeVar("Key")
Address = tuple[str, int]
Cursor = dict[str, Any]  # in the list of all queues: `topic_name` and `partition_index`


class Refused(Exception):
    """The server refused something; the message is one line for a person."""


def checked(code: int, what: str) -> None:
    """Raise Refused with Kafka's name for the error."""
    if code:
        known = {member.value: member.name for member in Code}
        raise Refused(f"{what}: {known.get(int(code), int(code))}")


class Client:
    """One connection to each node that is asked."""

    def __init__(
        self, address: Address, settings: ClientSettings | None = None, *,
        timeout_s: float = _TIMEOUT_S, answer_bytes_max: int = _ANSWER_BYTES_MAX,
    ) -> None:  # fmt: skip
        self._first = address
        self._timeout_s, self._answer_bytes_max = timeout_s, answer_bytes_max
        self._settings = settings or ClientSettings()
        self._sockets: dict[Address, socket.socket] = {}
        self._nodes: dict[int, Address] = {}
        self._correlation = 0

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._sockets.values():
            connection.close()
        self._sockets.clear()

    # -- requests

    def call(
        self, key: int, version: int, values: dict[str, Any], node: int | None = None,
        search: NameSearch = ALL,
    ) -> Any:  # fmt: skip
        """Ask a node, or the one that was named. Raises CannotStart where it cannot be reached."""
        address = self._first if node is None else self._address(node)
        self._correlation += 1
        try:
            return self._asked(address, self._connected(address), key, version, values, search)
        except OSError as error:
            if lost := self._sockets.pop(address, None):
                lost.close()
            if isinstance(error, ssl.SSLError):
                raise CannotStart(
                    f"no TLS with {address[0]}:{address[1]}: {error.strerror or error}; are"
                    " security.protocol and ssl.ca.location right?"
                ) from None
            raise CannotStart(
                f"nothing serves at {address[0]}:{address[1]}: {error.strerror or error}; is kproxy"
                " up, and --bootstrap-server right?"
            ) from None

    def _asked(
        self, address: Address, connection: socket.socket, key: int, version: int,
        values: Mapping[str, Any], search: NameSearch = ALL,
    ) -> Any:  # fmt: skip
        said = b"" if search == ALL else search.encode()
        connection.sendall(encode_request(key, version, self._correlation, values, said))
        length = int.from_bytes(_exactly(connection, 4), "big")
        if length > self._answer_bytes_max:
            raise CannotStart(
                f"{address[0]}:{address[1]} answers with {length} bytes: too many, or it does not"
                " speak Kafka's protocol"
            )
        return decode_response(key, version, _exactly(connection, length))[1]

    def _connected(self, address: Address) -> socket.socket:
        connection = self._sockets.get(address)
        if connection is None:
            connection = socket.create_connection(address, timeout=self._timeout_s)
            with suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                connection = self._settings.wrapped(connection, address[0])
                self._settings.log_in(partial(self._asked, address, connection))
            except BaseException:
                connection.close()
                raise
            self._sockets[address] = connection
        return connection

    def cluster(self) -> Any:
        """Return the cluster's id, its controller and its nodes."""
        values = {"include_cluster_authorized_operations": False, "endpoint_type": 1}
        return self.call(60, 1, values)

    def nodes(self) -> dict[int, Address]:
        """Return addresses by node id."""
        if not self._nodes:
            self._nodes = {b.broker_id: (b.host, b.port) for b in self.cluster().brokers}
        return self._nodes

    def cluster_id(self) -> str:
        """Return the id that the cluster keeps for life."""
        return str(self.cluster().cluster_id)

    def _address(self, node: int) -> Address:
        if node not in self._nodes:  # it may have come since
            self._nodes = {}
        if node not in self.nodes():
            raise CannotStart(f"node {node} is gone; ask again")
        return self._nodes[node]

    def by_coordinator(self, groups: Sequence[str]) -> dict[int, list[str]]:
        """Return groups by the node that coordinates them."""
        found: dict[int, list[str]] = defaultdict(list)
        for some in chunks(groups, 1000):
            values = {"key_type": 0, "coordinator_keys": tuple(some)}
            for one in self.call(10, 4, values).coordinators:
                checked(one.error_code, f"group {one.key}")
                found[one.node_id].append(one.key)
        return found

    # -- queues

    def page(
        self, cursor: Cursor, partitions: int = PAGE, search: NameSearch = ALL
    ) -> tuple[list[Any], Cursor | None]:
        """Return queues by name, perhaps none, and where there may be more. Raises Refused."""
        values = {"topics": (), "response_partition_limit": partitions, "cursor": cursor}
        page, matches = self.call(75, 0, values, search=search), matcher(search)
        for topic in page.topics:
            checked(0 if topic.name else topic.error_code, "searching")
        found = [topic for topic in page.topics if matches(topic.name.encode())]
        # A server of an older release goes on behind the last name that may be meant.
        over = bool(page.topics) and search.ends_before(page.topics[-1].name.encode())
        return found, None if over else page.next_cursor and asdict(page.next_cursor)

    def pages(self, search: NameSearch = ALL, partitions: int = PAGE) -> Iterator[list[Any]]:
        """Yield queues by name, so many partitions at a time."""
        cursor: Cursor | None = {"topic_name": search.begin, "partition_index": 0}
        while cursor is not None:
            page, cursor = self.page(cursor, partitions, search)
            yield page

    def metadata(self, names: Sequence[str]) -> Iterator[Any]:
        """Yield the metadata of queues with these names; none is made."""
        for some in chunks(names, 1000):
            values = {
                "topics": [{"name": name, "topic_id": None} for name in some],
                "allow_auto_topic_creation": False,
                "include_cluster_authorized_operations": False,
                "include_topic_authorized_operations": False,
            }
            yield from self.call(3, 10, values).topics

    def leaders(self, names: Sequence[str]) -> dict[tuple[str, int], int]:
        """Return the node of each partition of queues with these names."""
        return {
            (topic.name, part.partition_index): part.leader_id
            for topic in self.metadata(names)
            for part in topic.partitions
        }

    def queue(self, name: str) -> Any:
        """Return one queue with all its partitions. Raises Refused."""
        (topic,) = self.metadata([name])
        if topic.error_code:
            raise Refused(f"there is no queue {name}; `kproxy queues` lists those there are")
        return topic

    def offsets(
        self, leaders: dict[tuple[str, int], int], timestamp: int, *, committed: bool = False
    ) -> dict[Any, int]:
        """Return offsets at a timestamp (-1 end, -2 start) by partition, without partitions that
        moved. `committed`: the end is where read_committed ends.
        """

        def ask(node: int, parts: list[tuple[str, int]]) -> Iterator[tuple[Any, int]]:
            topics = [
                {
                    "name": name,
                    "partitions": [
                        {"partition_index": i, "current_leader_epoch": -1, "timestamp": timestamp}
                        for i in indices
                    ],
                }
                for name, indices in by_name(parts).items()
            ]
            values = {"replica_id": -1, "isolation_level": int(committed), "topics": topics}
            for topic in self.call(2, 6, values, node).topics:
                for part in topic.partitions:
                    if not part.error_code:
                        yield (topic.name, part.partition_index), part.offset

        return self._at_leaders(leaders, ask)

    def sizes(self, leaders: dict[tuple[str, int], int]) -> dict[Any, int]:
        """Return bytes of live records by partition."""

        def ask(node: int, parts: list[tuple[str, int]]) -> Iterator[tuple[Any, int]]:
            topics = [{"topic": n, "partitions": tuple(i)} for n, i in by_name(parts).items()]
            for directory in self.call(35, 4, {"topics": topics}, node).results:
                for topic in directory.topics:
                    for part in topic.partitions:
                        yield (topic.name, part.partition_index), part.partition_size

        return self._at_leaders(leaders, ask)

    def disk(self, node: int) -> tuple[int, int] | None:
        """Return a node's bytes in all and free; None: the asker may not know."""
        for directory in self.call(35, 4, {"topics": ()}, node).results:
            return int(directory.total_bytes), int(directory.usable_bytes)
        return None

    def _at_leaders(
        self,
        leaders: dict[tuple[str, int], int],
        ask: Callable[[int, list[tuple[str, int]]], Iterator[tuple[Any, int]]],
    ) -> dict[Any, int]:
        by_node: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for part, node in leaders.items():
            if node >= 0:
                by_node[node].append(part)
        return {part: value for node, parts in by_node.items() for part, value in ask(node, parts)}

    def delete(self, names: Sequence[str]) -> Iterator[tuple[str, int]]:
        """Delete queues; (name, error code) of each."""
        for some in chunks(names, PAGE):
            topics = [{"name": name, "topic_id": None} for name in some]
            answer = self.call(20, 6, {"topics": topics, "timeout": _TIMEOUT_S * 1000})
            for one in answer.responses:
                yield one.name, int(one.error_code)

    # -- groups

    def groups(self, search: NameSearch = ALL) -> list[Any]:
        """Return groups by name. Raises Refused."""
        found, matches = [], matcher(search)
        for node in self.nodes():
            answer = self.call(16, 5, {"states_filter": (), "types_filter": ()}, node, search)
            checked(answer.error_code, "listing groups")
            found += [group for group in answer.groups if matches(group.group_id.encode())]
        return sorted(found, key=lambda group: str(group.group_id))[: search.limit or None]

    def _of_groups(
        self, groups: Sequence[str], key: int, version: int, topics: Any, **more: Any
    ) -> Iterator[Any]:
        """Yield what the coordinators of groups say of each, of all queues or of one."""
        for node, names in self.by_coordinator(groups).items():
            for some in chunks(names, 500):
                asked = [{"group_id": name, "topics": topics} for name in some]
                yield from self.call(key, version, {"groups": asked, **more}, node).groups

    def committed(
        self, groups: Sequence[str], queue: str | None = None, partitions: int = 0
    ) -> dict[str, dict[tuple[str, int], int]]:
        """Return committed offsets by group and partition, of all queues or of one."""
        one = [{"name": queue, "partition_indexes": tuple(range(partitions))}]
        told = self._of_groups(groups, 9, 8, queue and one, require_stable=False)
        return {
            group.group_id: {
                (topic.name, part.partition_index): part.committed_offset
                for topic in group.topics
                for part in topic.partitions
                if part.committed_offset >= 0
            }
            for group in told
        }

    def shared(
        self, groups: Sequence[str], queue: str | None = None, partitions: int = 0
    ) -> dict[str, dict[tuple[str, int], tuple[int, int]]]:
        """(start, lag) by share group and partition, of all queues or of one."""
        one = [{"topic_name": queue, "partitions": tuple(range(partitions))}]
        return {
            group.group_id: {
                (topic.topic_name, part.partition_index): (part.start_offset, part.lag)
                for topic in group.topics
                for part in topic.partitions
                if part.start_offset >= 0
            }
            for group in self._of_groups(groups, 90, 1, queue and one)
        }

    # -- settings, and the states that are told as settings

    def configs(
        self, names: Sequence[str], keys: Sequence[str] | None, node: int | None = None,
        kind: int = QUEUE,
    ) -> Sequence[Any]:  # fmt: skip
        """Return settings by these names, None: all, of queues or groups."""
        resources = [
            {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
            for name in names
        ]
        values = {"resources": resources, "include_synonyms": False, "include_documentation": False}
        results: Sequence[Any] = self.call(32, 4, values, node).results
        return results

    def _states(self, name: str, of: str, nodes: Iterable[int], kind: int = QUEUE) -> Iterator[Any]:
        """Yield each node's state of the partitions that it serves."""
        for node in nodes:
            for config in self.configs([name], (f"kproxy.state.{of}",), node, kind)[0].configs:
                yield json.loads(config.value)

    def share_states(
        self, group: str, queue: str, nodes: Iterable[int]
    ) -> tuple[int, dict[int, dict[str, Any]]]:
        """Return (records that wait for a dead-letter queue, a share group's states by
        partition).
        """
        owed = 0
        found: dict[int, dict[str, Any]] = {}
        for told in self._states(group, queue, nodes, GROUP):
            owed += told["dead_letters_waiting"]
            found |= {int(index): stands for index, stands in told["partitions"].items()}
        return owed, found

    def delays(self, queue: str, nodes: Iterable[int]) -> list[dict[str, Any]]:
        """Return the delayed records of a queue: partition, records, when the next are due."""
        found = chain.from_iterable(self._states(queue, "delays", nodes))
        return sorted(found, key=lambda one: int(one["partition"]))

    def routes(self, queue: str, nodes: Iterable[int]) -> dict[str, list[dict[str, Any]]]:
        """Return the states of routes out of a queue's partitions, by the queue that defines
        each; of its redrive: `REDRIVES`.
        """
        found: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for one in chain.from_iterable(self._states(queue, "routes", nodes)):
            of_redrive = one.get("redrive") is not None
            found[REDRIVES if of_redrive else one["queue"]].append(one)
        return found

    def settings(self, name: str, keys: tuple[str, ...]) -> dict[str, str | None]:
        """Return settings of a queue, by these names; none where it may not be looked at."""
        return {one.name: one.value for one in self.configs([name], keys)[0].configs}


def matcher(search: NameSearch) -> Matches:
    """Return which names a search means. Raises Refused."""
    try:
        return search.matcher()
    except KafkaError as error:
        raise Refused(f"{search.matching} is no expression of RE2: {error.message}") from None


def chunks(items: Sequence[Key], size: int) -> Iterator[Sequence[Key]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def by_name(parts: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for name, index in parts:
        found[name].append(index)
    return found


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        more = connection.recv(min(count - len(data), 1 << 20))
        if not more:
            raise ConnectionError("it closed the connection")
        data += more
    return bytes(data)
