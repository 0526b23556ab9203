"""Levels: which kinds and forms a cluster or a data directory may be written with.

A level is a set of kinds of envelopes, rows and records that older releases do not know. Each
release reads all levels up to its `NEWEST`. It writes what needs a level only after an operator
has finalized that level (`metadata.levels`). Level 1 is what kproxy wrote before there were levels.
"""

FEATURE = "kproxy.level"
"""Its name as a feature (KIP-584): `kafka-features.sh` shows and upgrades it."""
OLDEST = 1
NEWEST = 10
RELEASED = 9
"""The newest level of a release. It is closed: what is new from now on needs the next one."""
CALLS_FROM = 2
"""All workers call the owner of a log that they append to (`upstream.link`)."""
BINARY_FROM = 2
"""Commands of groups and of committed offsets have binary bodies."""
COMPACTION_FROM = 3
"""Queues may be compacted."""
TRANSACTIONS_FROM = 4
"""Producers may have transactional ids."""
SHARES_FROM = 5
"""Groups may be share groups, and have settings."""
ROUTES_FROM = 6
"""Queues may pass records on to others."""
DELAYS_FROM = 6
"""Records may wait until they are due."""
RESTORES_FROM = 6
"""A data directory may come from a backup."""
SECURITY_FROM = 7
"""The level from which there may be access rules, users and quotas."""
ARRIVAL_FROM = 8
"""Retention may count from the arrival of records."""
PRODUCERS_FROM = 8
"""Partitions remember idempotent producers by time."""
SHIPS_FROM = 8
"""A SHIP of a filter says where its cut begins."""
LETTERS_FROM = 8
"""Routes pass dead letters on."""
ENCODINGS_FROM = 8
"""Templates of routes may encode keys and headers."""
FORGETS_FROM = 8
"""FORGET_LANDED also drops FORWARDED rows."""
SPARES_FROM = 8
"""A TRIM of retention, or of what was passed on, spares what a new route has to pass on."""
WAITS_FROM = 8
"""A change of a route waits where a partition keeps as many epochs as it may."""
UNASKED_FROM = 8
"""A CREATE says that nobody has said how the queue is to be."""
ORDERED_FROM = 8
"""A committed offset keeps the log offset of its commit."""
STREAMS_FROM = 9
"""Groups may be streams groups (KIP-1071)."""
ONCE_FROM = 9
"""An envelope that the cluster has taken twice is applied once."""
LANES_FROM = 9
"""Share groups may have lanes, which may be held."""
LIFE_FROM = 9
"""Queues and records may go by themselves, wait under a key, and be appended on a condition."""
KAFKA_44_FROM = 10
"""Queues and groups may have the settings that came with Kafka 4.4."""
JOBS_FROM = 10
"""The server may have bulk jobs."""
