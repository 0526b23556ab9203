"""Settings, access rules, the cluster and what else operators' tools ask."""

from dataclasses import replace
from typing import Any

from kproxy.protocol.api_keys import ApiKey
from tests.kafka.alike import made
from tests.kafka.at_versions.asked import Asked, Values

TOPIC, GROUP, BROKER, CLIENT_METRICS = 2, 32, 4, 16
SASL_REQUESTS = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
BOTH_KNOW = {
    *(ApiKey[name] for name in ("PRODUCE", "FETCH", "METADATA", "API_VERSIONS", "SHARE_FETCH"))
}
"""APIs that are looked for in the answer to ApiVersions: a longer comparison is in inference."""
FEATURES = ("transaction.version", "share.version", "streams.version")


def api_versions(asked: Asked) -> None:
    def own(answer: Any) -> Any:
        kept = {"api_keys": tuple(k for k in answer.api_keys if k.api_key in BOTH_KNOW)}
        for name in ("supported_features", "finalized_features"):
            if hasattr(answer, name):
                ours = (one for one in getattr(answer, name) if one.name in FEATURES)
                kept[name] = tuple(ours)
        return replace(answer, **kept)

    for what, name, version in (
        ("known", "some", "1.0"), ("a bad name", "a b", "1"), ("no name", "", "1"),
        ("a bad version", "some", "-"),
    ):  # fmt: skip
        values = {"client_software_name": name, "client_software_version": version}
        asked.each(what, ApiKey.API_VERSIONS, values, own)


def sasl_handshake(asked: Asked) -> None:
    for mechanism in ("PLAIN", "nonsense"):
        asked.each(mechanism, ApiKey.SASL_HANDSHAKE, {"mechanism": mechanism})


def sasl_authenticate(asked: Asked) -> None:
    asked.each("without login", ApiKey.SASL_AUTHENTICATE, {"auth_bytes": b"\0a\0b"})


def describe_configs(asked: Asked) -> None:
    queue = asked.name
    made(asked.wire, queue, retention_ms="1234")
    names = ("retention.ms", "cleanup.policy", "max.message.bytes", "no.such", "broker.id")
    for what, kind, name, keys in (
        ("known", TOPIC, queue, names), ("unknown queue", TOPIC, f"{queue}-none", names),
        ("a bad name", TOPIC, "a b", names), ("a group", GROUP, queue, None),
        ("no kind", 77, queue, None), ("an unknown broker", BROKER, "99", names),
        ("no broker's name", BROKER, "x", names), ("of all brokers", BROKER, "", names),
        ("client metrics", CLIENT_METRICS, queue, None),
    ):  # fmt: skip
        for more in (False, True):
            resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
            values = {"resources": [resource], "include_synonyms": more,
                      "include_documentation": more}  # fmt: skip
            asked.each(f"{what}{', in full' if more else ''}", ApiKey.DESCRIBE_CONFIGS, values,
                       theirs)  # fmt: skip


def theirs(answer: Any) -> Any:
    """Return it without settings that are kproxy's own."""
    return replace(answer, results=tuple(
        replace(one, configs=tuple(
            two for two in one.configs if not two.name.startswith(("kproxy.", "errors."))
        ))
        for one in answer.results
    ))  # fmt: skip


def altered(asked: Asked, key: ApiKey, **more: Any) -> None:
    queue = asked.name
    made(asked.wire, queue)
    for what, kind, name, setting, value in (
        ("known", TOPIC, queue, "retention.ms", "5"),
        ("to none", TOPIC, queue, "retention.ms", None),
        ("wrong", TOPIC, queue, "retention.ms", "soon"), ("no such", TOPIC, queue, "no.such", "1"),
        ("unknown queue", TOPIC, f"{queue}-none", "retention.ms", "5"),
        ("a bad name", TOPIC, "a b", "retention.ms", "5"), ("no kind", 77, queue, "a", "5"),
        ("an unknown broker", BROKER, "99", "a", "5"),
        ("a group", GROUP, queue, "consumer.session.timeout.ms", "50000"),
        ("a wrong one of a group", GROUP, queue, "consumer.session.timeout.ms", "1"),
    ):  # fmt: skip
        for dry in (True, False):
            resource = {"resource_type": kind, "resource_name": name,
                        "configs": [{"name": setting, "value": value} | more]}  # fmt: skip
            values = {"resources": [resource], "validate_only": dry}
            asked.each(f"{what}{', dry' if dry else ''}", key, values)


def alter_configs(asked: Asked) -> None:
    altered(asked, ApiKey.ALTER_CONFIGS)


def incremental(asked: Asked) -> None:
    for operation in (0, 1, 2):
        asked.said.append(f"operation {operation}")
        if operation:
            asked.name += f"-{operation}"
        altered(asked, ApiKey.INCREMENTAL_ALTER_CONFIGS, config_operation=operation)


def config_resources(asked: Asked) -> None:
    made(asked.wire, asked.name)

    def own(answer: Any) -> Any:
        kept = [one for one in answer.config_resources if one.resource_name == asked.name]
        return replace(answer, config_resources=tuple(kept))

    for kinds in ((), (TOPIC,), (TOPIC, GROUP), (77,)):
        asked.each(str(kinds), ApiKey.LIST_CONFIG_RESOURCES, {"resource_types": kinds}, own)


ANY = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
    "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip
RULE = {
    "resource_type": TOPIC, "resource_name": "some", "resource_pattern_type": 3,
    "principal": "User:some", "host": "*", "operation": 3, "permission_type": 3,
}  # fmt: skip


def rules(asked: Asked, key: ApiKey, *odd: Values) -> None:
    """Ask of access rules where none are kept: a real Kafka has no authorizer here."""
    for changes in ({}, {"pattern_type_filter": 4, "resource_pattern_type": 4}, *odd):
        one = ANY | RULE | changes
        asked.each(str(changes), key, one | {"creations": [one], "filters": [one]})


def describe_acls(asked: Asked) -> None:
    rules(asked, ApiKey.DESCRIBE_ACLS)


def create_acls(asked: Asked) -> None:
    rules(asked, ApiKey.CREATE_ACLS)


def delete_acls(asked: Asked) -> None:
    rules(asked, ApiKey.DELETE_ACLS)


def create_token(asked: Asked) -> None:
    values = {"owner_principal_type": "", "owner_principal_name": "", "renewers": (),
              "max_lifetime": -1}  # fmt: skip
    asked.each("for oneself", ApiKey.CREATE_DELEGATION_TOKEN, values)


def renew_token(asked: Asked) -> None:
    values = {"hmac": b"none", "renew_period": 1}
    asked.each("unknown", ApiKey.RENEW_DELEGATION_TOKEN, values)


def expire_token(asked: Asked) -> None:
    values = {"hmac": b"none", "expiry_time_period": 1}
    asked.each("unknown", ApiKey.EXPIRE_DELEGATION_TOKEN, values)


def describe_tokens(asked: Asked) -> None:
    for owners in (None, ()):
        asked.each(str(owners), ApiKey.DESCRIBE_DELEGATION_TOKEN, {"owners": owners})


def log_dirs(asked: Asked) -> None:
    made(asked.wire, asked.name)
    for name, index in ((asked.name, 0), (asked.name, 7), (f"{asked.name}-none", 0)):
        topics = [{"topic": name, "partitions": (index,)}]
        asked.each(f"{name} {index}", ApiKey.DESCRIBE_LOG_DIRS, {"topics": topics})


def move_directories(asked: Asked) -> None:
    made(asked.wire, asked.name)
    for name, index in ((asked.name, 0), (asked.name, 7), (f"{asked.name}-none", 0)):
        dirs = [{"path": "/no/such", "topics": [{"name": name, "partitions": (index,)}]}]
        asked.each(f"{name} {index}", ApiKey.ALTER_REPLICA_LOG_DIRS, {"dirs": dirs})


def elect(asked: Asked) -> None:
    made(asked.wire, asked.name)
    for what, name, index, kind in (
        ("preferred", asked.name, 0, 0), ("unclean", asked.name, 0, 1),
        ("no kind", asked.name, 0, 7),
        ("unknown partition", asked.name, 9, 0), ("unknown queue", f"{asked.name}-none", 0, 0),
    ):  # fmt: skip
        topics = [{"topic": name, "partitions": (index,)}]
        values = {"election_type": kind, "topic_partitions": topics, "timeout": 5000}
        asked.each(what, ApiKey.ELECT_LEADERS, values)


def reassign(asked: Asked) -> None:
    made(asked.wire, asked.name)
    for what, name, replicas, factor in (
        ("nothing to cancel", asked.name, None, True),
        ("unknown", f"{asked.name}-none", (77,), True),
        ("a stranger", asked.name, (77,), True), ("two for one", asked.name, (77, 78), False),
        ("none", asked.name, (), True),
    ):  # fmt: skip
        parts = [{"partition_index": 0, "replicas": replicas}]
        values = {"timeout": 5000, "topics": [{"name": name, "partitions": parts}],
                  "allow_replication_factor_change": factor}  # fmt: skip
        asked.each(what, ApiKey.ALTER_PARTITION_REASSIGNMENTS, values)


def reassignments(asked: Asked) -> None:
    made(asked.wire, asked.name)
    for name in (asked.name, f"{asked.name}-none"):
        topics = [{"name": name, "partition_indexes": (0,)}]
        values = {"timeout": 1000, "topics": topics}
        asked.each(name, ApiKey.LIST_PARTITION_REASSIGNMENTS, values)


def describe_quotas(asked: Asked) -> None:
    for kind, match, strict in (("user", 0, False), ("nonsense", 0, True), ("user", 7, False)):
        one = {"entity_type": kind, "match_type": match, "match": asked.name}
        values = {"components": [one], "strict": strict}
        asked.each(f"{kind} {match}", ApiKey.DESCRIBE_CLIENT_QUOTAS, values)


def alter_quotas(asked: Asked) -> None:
    for kind, key, value in (
        ("user", "producer_byte_rate", 10.0), ("user", "nonsense", 1.0), ("nonsense", "a", 1.0),
        ("user", "producer_byte_rate", -1.0),
    ):  # fmt: skip
        entity = [{"entity_type": kind, "entity_name": asked.name}]
        entry = {"entity": entity, "ops": [{"key": key, "value": value, "remove": False}]}
        values = {"entries": [entry], "validate_only": True}
        asked.each(f"{kind} {key} {value}", ApiKey.ALTER_CLIENT_QUOTAS, values)


def describe_users(asked: Asked) -> None:
    for users in ([{"name": asked.name}], [{"name": ""}], [{"name": asked.name}] * 2):
        asked.each(str(users), ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": users})


def alter_users(asked: Asked) -> None:
    for name, mechanism in ((asked.name, 1), (asked.name, 77), ("", 1)):
        values = {"deletions": [{"name": name, "mechanism": mechanism}], "upsertions": ()}
        asked.each(f"{name} {mechanism}", ApiKey.ALTER_USER_SCRAM_CREDENTIALS, values)


def quorum(asked: Asked) -> None:
    for name, index in (("__cluster_metadata", 0), ("__cluster_metadata", 7), (asked.name, 0)):
        topics = [{"topic_name": name, "partitions": [{"partition_index": index}]}]
        asked.each(f"{name} {index}", ApiKey.DESCRIBE_QUORUM, {"topics": topics}, standing)


def standing(answer: Any) -> Any:
    """Return what does not move while it is asked."""
    parts = [
        [t.topic_name, p.partition_index, p.error_code, len(p.current_voters), len(p.observers)]
        for t in answer.topics for p in t.partitions
    ]  # fmt: skip
    return [answer.error_code, parts, len(getattr(answer, "nodes", ()))]


def update_features(asked: Asked) -> None:
    for name, level in (("no.such", 1), ("transaction.version", 99), ("share.version", -1)):
        update = {"feature": name, "max_version_level": level, "allow_downgrade": False,
                  "upgrade_type": 1}  # fmt: skip
        values = {"timeout": 5000, "feature_updates": [update], "validate_only": False}
        asked.each(f"{name} {level}", ApiKey.UPDATE_FEATURES, values)


def describe_cluster(asked: Asked) -> None:
    for endpoint in (1, 2, 7):
        for more in (False, True):
            values = {"include_cluster_authorized_operations": more, "endpoint_type": endpoint,
                      "include_fenced_brokers": more}  # fmt: skip
            asked.each(f"endpoint {endpoint} {more}", ApiKey.DESCRIBE_CLUSTER, values)


def unregister(asked: Asked) -> None:
    asked.each("unknown", ApiKey.UNREGISTER_BROKER, {"broker_id": 99})


SITUATIONS = {
    ApiKey.API_VERSIONS: api_versions,
    ApiKey.SASL_HANDSHAKE: sasl_handshake,
    ApiKey.SASL_AUTHENTICATE: sasl_authenticate,
    ApiKey.DESCRIBE_CONFIGS: describe_configs,
    ApiKey.ALTER_CONFIGS: alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental,
    ApiKey.LIST_CONFIG_RESOURCES: config_resources,
    ApiKey.DESCRIBE_ACLS: describe_acls,
    ApiKey.CREATE_ACLS: create_acls,
    ApiKey.DELETE_ACLS: delete_acls,
    ApiKey.CREATE_DELEGATION_TOKEN: create_token,
    ApiKey.RENEW_DELEGATION_TOKEN: renew_token,
    ApiKey.EXPIRE_DELEGATION_TOKEN: expire_token,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: describe_tokens,
    ApiKey.DESCRIBE_LOG_DIRS: log_dirs,
    ApiKey.ALTER_REPLICA_LOG_DIRS: move_directories,
    ApiKey.ELECT_LEADERS: elect,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: reassign,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: reassignments,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: describe_quotas,
    ApiKey.ALTER_CLIENT_QUOTAS: alter_quotas,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: describe_users,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: alter_users,
    ApiKey.DESCRIBE_QUORUM: quorum,
    ApiKey.UPDATE_FEATURES: update_features,
    ApiKey.DESCRIBE_CLUSTER: describe_cluster,
    ApiKey.UNREGISTER_BROKER: unregister,
}
