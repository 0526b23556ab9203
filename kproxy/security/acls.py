"""Access rules as Kafka has them: bindings, filters of bindings, and an index to decide by.

A rule allows or denies one principal, from one host, one operation on resources by name or by the
beginning of their names. Numbers are those of Kafka's protocol.
"""

from collections import Counter
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

from kproxy.loop.pace import Pace
from kproxy.security.peer import plain_ip

WILDCARD = "*"
ANYBODY = "User:*"
CLUSTER_NAME = "kafka-cluster"


class Resource(IntEnum):
    """The kind of a resource."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Pattern(IntEnum):
    """The way in which a rule names resources. ANY and MATCH are of filters alone."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Op(IntEnum):
    """An operation on a resource."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Effect(IntEnum):
    """The effect of a rule."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


OPERATIONS = {
    Resource.TOPIC: (
        Op.READ, Op.WRITE, Op.CREATE, Op.DESCRIBE, Op.DELETE, Op.ALTER, Op.DESCRIBE_CONFIGS,
        Op.ALTER_CONFIGS,
    ),
    Resource.GROUP: (Op.READ, Op.DESCRIBE, Op.DELETE, Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS),
    Resource.CLUSTER: (
        Op.CREATE, Op.CLUSTER_ACTION, Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS, Op.IDEMPOTENT_WRITE,
        Op.ALTER, Op.DESCRIBE,
    ),
    Resource.TRANSACTIONAL_ID: (Op.DESCRIBE, Op.WRITE, Op.TWO_PHASE_COMMIT),
    Resource.DELEGATION_TOKEN: (Op.DESCRIBE,),
    Resource.USER: (Op.CREATE_TOKENS, Op.DESCRIBE_TOKENS),
}  # fmt: skip
"""The operations that a resource has, for `authorized_operations` of answers."""
IMPLIED_BY = {
    Op.DESCRIBE: (Op.READ, Op.WRITE, Op.DELETE, Op.ALTER),
    Op.DESCRIBE_CONFIGS: (Op.ALTER_CONFIGS,),
}
"""The operations that imply the key."""
_DENY_BITS = 16


def _bit(operation: int, effect: int) -> int:
    return 1 << (operation + (_DENY_BITS if effect == Effect.DENY else 0))


ALLOWS = {
    op: sum(_bit(o, Effect.ALLOW) for o in {op, Op.ALL, *IMPLIED_BY.get(op, ())}) for op in Op
}
DENIES = {op: _bit(op, Effect.DENY) | _bit(Op.ALL, Effect.DENY) for op in Op}
"""The bits of a mask (see `Grants`) that allow or deny an operation."""


class Binding(NamedTuple):
    """One rule."""

    kind: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    effect: int

    @staticmethod
    def of_row(values: list[Any]) -> "Binding":
        """Decode a row. Raises ValueError or TypeError where it is no rule."""
        kind, name, pattern, principal, host, operation, effect = values
        if not all(isinstance(text, str) for text in (name, principal, host)):
            raise ValueError("a rule's names are text")
        if pattern not in (Pattern.LITERAL, Pattern.PREFIXED):
            raise ValueError(f"a rule has pattern type {pattern}")
        if effect not in (Effect.DENY, Effect.ALLOW):
            raise ValueError(f"a rule has permission type {effect}")
        return Binding(Resource(kind), name, pattern, principal, host, Op(operation), effect)

    @property
    def bit(self) -> int:
        return _bit(self.operation, self.effect)


def _known(kinds: type[IntEnum], value: int) -> bool:
    return value != 0 and value in kinds._value2member_map_


class Filter(NamedTuple):
    """A filter of rules. ANY and None stand for all."""

    kind: int = Resource.ANY
    name: str | None = None
    pattern: int = Pattern.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = Op.ANY
    effect: int = Effect.ANY

    def unknown(self) -> str | None:
        """Return the part of it that is of no known kind, by Kafka's name."""
        if not (_known(Resource, self.kind) and _known(Pattern, self.pattern)):
            return "patternFilter"
        if not (_known(Op, self.operation) and _known(Effect, self.effect)):
            return "entryFilter"
        return None

    def empty(self) -> bool:
        """Whether a part of it is 0: other unknown kinds are taken for such as match nothing."""
        return 0 in (self.kind, self.pattern, self.operation, self.effect)

    def matches(self, rule: Binding) -> bool:
        return (
            self.kind in (Resource.ANY, rule.kind)
            and self._names(rule)
            and self.principal in (None, rule.principal)
            and self.host in (None, rule.host)
            and self.operation in (Op.ANY, rule.operation)
            and self.effect in (Effect.ANY, rule.effect)
        )

    def _names(self, rule: Binding) -> bool:
        if self.pattern not in (Pattern.ANY, Pattern.MATCH, rule.pattern):
            return False
        if self.name is None or self.name == rule.name:
            return True
        if self.pattern != Pattern.MATCH:
            return False
        if rule.pattern == Pattern.LITERAL:
            return rule.name == WILDCARD
        return self.name.startswith(rule.name)


class Grants:
    """The rules on resources of one kind: a mask of bits by name, and by beginning of names.

    Each rule is one bit of one mask. `of` costs about a microsecond, however many rules there are.
    """

    __slots__ = ("_lengths", "_widths", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, int] = {}
        self.prefixed: dict[str, int] = {}
        self._widths: Counter[int] = Counter()  # lengths of prefixes
        self._lengths: tuple[int, ...] = ()

    def of(self, name: str) -> int:
        """Return the bits of all rules that apply to a resource."""
        literal = self.literal
        mask = literal.get(name, 0) | literal.get(WILDCARD, 0)
        if self._lengths:
            prefixed, size = self.prefixed, len(name)
            for length in self._lengths:
                if length > size:
                    break
                mask |= prefixed.get(name[:length], 0)
        return mask

    def add(self, pattern: int, name: str, bit: int) -> None:
        masks = self.literal if pattern == Pattern.LITERAL else self.prefixed
        if pattern == Pattern.PREFIXED and name not in masks:
            self._widths[len(name)] += 1
            self._lengths = tuple(sorted(self._widths))
        masks[name] = masks.get(name, 0) | bit

    def remove(self, pattern: int, name: str, bit: int) -> None:
        masks = self.literal if pattern == Pattern.LITERAL else self.prefixed
        masks[name] &= ~bit
        if masks[name]:
            return
        del masks[name]
        if pattern == Pattern.PREFIXED:
            self._widths[len(name)] -= 1
            if not self._widths[len(name)]:
                del self._widths[len(name)]
                self._lengths = tuple(sorted(self._widths))

    def covers(self, beginning: str, bits: int) -> bool:
        """Whether a rule says so of all names that begin so."""
        if self.literal.get(WILDCARD, 0) & bits:
            return True
        return any(
            self.prefixed.get(beginning[:length], 0) & bits
            for length in self._lengths
            if length <= len(beginning)
        )

    def touches(self, beginning: str, bits: int) -> bool:
        """Whether a rule says so of any name that begins so. It walks all rules."""
        return self.covers(beginning, bits) or any(
            mask & bits and name.startswith(beginning)
            for masks in (self.literal, self.prefixed)
            for name, mask in masks.items()
        )


async def any_allowed(grants: list[Grants], allows: int, denies: int, pace: Pace) -> bool:
    """Whether one of the rules allows what none denies for all that it names.

    The rules are taken as they are at the start.
    """
    literal = [one.literal for one in grants]
    prefixed = [one.prefixed for one in grants]
    denied = _saying(literal, denies)
    if WILDCARD in denied:
        return False
    allowed = _saying(literal, allows)
    if WILDCARD in allowed:
        return True
    beginnings = _saying(prefixed, denies)
    left = (allowed - denied | _saying(prefixed, allows)) - beginnings
    lengths = {len(beginning) for beginning in beginnings}
    for name in left:
        if not any(name[:length] in beginnings for length in lengths):
            return True
        if pace.due:
            await pace.rest()
    return False


def _saying(masks: list[dict[str, int]], bits: int) -> set[str]:
    return {name for some in masks for name, mask in some.items() if mask & bits}


class Acls:
    """All rules, and an index by whom they are about.

    An address of IPv6 may be written in several ways, Java's among them: rules of one address are
    one in the index, however each is written.
    """

    def __init__(self) -> None:
        self.rules: dict[Binding, None] = {}
        self._grants: dict[tuple[str, str, int], Grants] = {}
        self._counts: Counter[tuple[str, str, int]] = Counter()
        self._named: dict[int, Grants] = {}  # by kind: which resources any rule names
        self._names: Counter[tuple[int, int, str]] = Counter()
        self._same: Counter[Binding] = Counter()  # rules with one address in other letters

    def __len__(self) -> int:
        return len(self.rules)

    def add(self, rule: Binding) -> None:
        if rule in self.rules:
            return
        self.rules[rule] = None
        rule = _plain(rule)
        self._same[rule] += 1
        if self._same[rule] > 1:
            return
        key = rule.principal, rule.host, rule.kind
        self._counts[key] += 1
        self._grants.setdefault(key, Grants()).add(rule.pattern, rule.name, rule.bit)
        named = rule.kind, rule.pattern, rule.name
        self._names[named] += 1
        self._named.setdefault(rule.kind, Grants()).add(rule.pattern, rule.name, 1)

    def remove(self, rule: Binding) -> None:
        if rule not in self.rules:
            return
        del self.rules[rule]
        rule = _plain(rule)
        self._same[rule] -= 1
        if self._same[rule]:
            return
        del self._same[rule]
        key = rule.principal, rule.host, rule.kind
        self._grants[key].remove(rule.pattern, rule.name, rule.bit)
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key], self._grants[key]
        named = rule.kind, rule.pattern, rule.name
        self._names[named] -= 1
        if not self._names[named]:
            del self._names[named]
            self._named[rule.kind].remove(rule.pattern, rule.name, 1)

    def about(self, principal: str, host: str, kind: int) -> list[Grants]:
        """Return the rules on resources of a kind that apply to a principal at a host."""
        host = plain_ip(host)
        keys = [(p, h, kind) for p in (principal, ANYBODY) for h in (host, WILDCARD)]
        return [grants for key in keys if (grants := self._grants.get(key)) is not None]

    def names(self, kind: int, name: str) -> bool:
        """Whether any rule, of anybody, applies to a resource."""
        named = self._named.get(kind)
        return named is not None and bool(named.of(name))

    def matching(self, wanted: Filter) -> Iterator[Binding]:
        """Yield the rules that a filter matches. It walks all."""
        return (rule for rule in list(self.rules) if wanted.matches(rule))


def _plain(rule: Binding) -> Binding:
    """Return a rule whose host is written as a socket tells it; mostly the rule itself."""
    host = rule.host if rule.host == WILDCARD else plain_ip(rule.host)
    return rule if host == rule.host else rule._replace(host=host)
