"""The memory of clients' rights: bounded, whatever they ask for."""

from kproxy.security.acls import Acls, Op, Resource
from kproxy.security.peer import Peer
from kproxy.security.permits import Authorizer


class NoRules:
    generation = 0
    acls = Acls()


def authorizer() -> Authorizer:
    return Authorizer(NoRules(), enabled=True, super_users=frozenset(), lenient=False)


def test_names_that_no_queue_can_have_are_not_kept() -> None:
    permits = authorizer().permits(Peer("User:alice", "10.0.0.1"))
    for number in range(100):
        assert not permits.sees(Op.READ, Resource.TOPIC, f"{number}" + "n" * 32_000)
        assert not permits.sees(Op.READ, Resource.GROUP, f"{number}")
    assert sum(len(name) for _, _, name in permits._known) < 100 * 249


def test_one_client_more_makes_the_others_not_forgotten() -> None:
    all_of_them = authorizer()
    peers = [Peer("User:alice", f"10.0.{n >> 8}.{n & 255}") for n in range(300)]
    held = [all_of_them.permits(peer) for peer in peers]
    assert all(
        all_of_them.permits(peer) is one for peer, one in zip(peers[100:], held[100:], strict=True)
    )
    assert len(all_of_them._permits) == 256


def test_each_client_has_refusals_of_its_own_in_the_log() -> None:
    all_of_them = authorizer()
    alice, bob = (all_of_them.permits(Peer(f"User:{name}", "10.0.0.1")) for name in ("a", "b"))
    for _ in range(100):
        alice.topic(Op.READ, "q")
    assert not alice.log.has_room
    assert bob.log.has_room
