"""AuthenticateBroker: who gets through, and everything that is no proof."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from kits.broker.data_plane import NotedPeer
from millstream.broker.cluster import broker_secrets
from millstream.broker.cluster.authentication import AcceptedHere, Authenticator, Prover
from millstream.broker.cluster.broker_secrets import READS_MAX, WAITING_MAX, BrokerSecrets
from millstream.broker.requests.between_brokers import BrokerUnverifiable, NotABroker
from millstream.broker.requests.broker_proof import Challenge, Claim, Side, proof_of
from millstream.controller.cluster.registration import Registered
from millstream.controller.image import BrokerImage
from millstream.coordination.errors import ConnectionLost, NoNode
from millstream.model.ids import BrokerEpoch, BrokerId
from millstream.observe.client_log import ClientLog
from millstream.observe.logs import Secret
from millstream.rpc.errors import ConnectFailed
from millstream.runtime.randomness import SeededRandomness, system_randomness
from millstream.testing.sim.clock import ManualClock
from millstream.wire.messages.authenticate_broker import (
    AuthenticateBrokerRequest,
    AuthenticateBrokerResponse,
)

ADDRESS, CLUSTER = "one:9092", "c"
TWO, EPOCH, SECRET = BrokerId(2), BrokerEpoch(50), Secret("5e" * 32)


class Stat:
    def __init__(self, czxid: int) -> None:
        self.czxid = czxid


class Node:
    def __init__(self, data: bytes, czxid: int) -> None:
        self.data, self.stat = data, Stat(czxid)


class Service:
    """The coordination service's secrets."""

    def __init__(self) -> None:
        self.nodes = {"/millstream/secrets/2": Node(SECRET.reveal().encode(), EPOCH)}
        self.reads = 0
        self.is_reachable = True
        self.gate: asyncio.Event | None = None
        """Reads wait for it."""

    async def sync(self, path: str) -> None:
        del path

    async def get(self, path: str) -> Node:
        self.reads += 1
        if self.gate is not None:
            await self.gate.wait()
        if not self.is_reachable:
            raise ConnectionLost("cut off", is_in_doubt=False)
        if path not in self.nodes:
            raise NoNode(path)
        return self.nodes[path]


class World:
    """Broker 1, to which broker 2 connects."""

    def __init__(self, *, listener: str | None = None) -> None:
        self.service = Service()
        self.cluster_id = CLUSTER
        self.spawned: list[Any] = []
        self.secrets = BrokerSecrets(
            BrokerId(1),
            lambda: cast("Any", self.service),
            lambda work, _: self.spawned.append(work),
        )
        accepted = AcceptedHere(frozenset({ADDRESS}), listener)
        self.server = Authenticator(
            self.secrets, lambda: accepted, lambda: self.cluster_id, SeededRandomness(1)
        )
        self.peer = NotedPeer()
        self.held: Registered | None = Registered(cast("Any", None), EPOCH, CLUSTER, SECRET)
        self.change: Callable[[AuthenticateBrokerRequest], None] = lambda _: None
        self.change_answer: Callable[[AuthenticateBrokerResponse], None] = lambda _: None
        self.address = ADDRESS

    async def send(self, request: AuthenticateBrokerRequest, **_: Any) -> Any:
        """As the connection of the other broker does."""
        request = AuthenticateBrokerRequest.decode(memoryview(request.encode(0)), 0)
        self.change(request)
        answer = await self.server.answer(self.peer, request)
        answer = AuthenticateBrokerResponse.decode(memoryview(answer.encode(0)), 0)
        self.change_answer(answer)
        return answer

    def prove(self) -> None:
        client_log = ClientLog(ManualClock())
        prover = Prover(TWO, lambda: self.held, SeededRandomness(2), client_log, timeout_s=1.0)
        asyncio.run(prover.prove(cast("Any", self)))


def test_a_registered_broker_proves_itself() -> None:
    world = World()
    world.prove()
    assert world.peer.proven_broker == TWO
    assert world.service.reads == 1


def test_a_broker_that_is_known_needs_no_coordination_service() -> None:
    world = World()
    world.prove()
    world.service.is_reachable, world.peer = False, NotedPeer()
    world.prove()
    assert world.peer.proven_broker == TWO


def test_brokers_in_the_metadata_are_known_before_they_connect() -> None:
    world = World()
    image = {TWO: BrokerImage(TWO, epoch=EPOCH), BrokerId(1): BrokerImage(BrokerId(1), epoch=EPOCH)}
    world.secrets.note_brokers(image)
    for work in world.spawned:
        asyncio.run(work)
    assert world.service.reads == 1, "not its own"
    world.secrets.note_brokers(image)
    assert len(world.spawned) == 1, "once for each incarnation"
    world.service.is_reachable = False
    world.prove()
    assert world.peer.proven_broker == TWO


def test_a_new_incarnation_proves_itself_with_its_new_secret() -> None:
    world = World()
    world.prove()
    newer = Secret("77" * 32)
    world.service.nodes["/millstream/secrets/2"] = Node(newer.reveal().encode(), 60)
    assert world.held is not None
    old, world.peer = world.held, NotedPeer()
    world.held = old._replace(epoch=BrokerEpoch(60), secret=newer)
    world.prove()
    assert world.peer.proven_broker == TWO
    world.held, world.peer = old, NotedPeer()
    with pytest.raises(NotABroker):
        world.prove()


def test_without_the_coordination_service_strangers_may_try_again() -> None:
    world = World()
    world.service.is_reachable = False
    with pytest.raises(BrokerUnverifiable):
        world.prove()
    assert world.peer.proven_broker is None


def second_only(**fields: Any) -> Callable[[AuthenticateBrokerRequest], None]:
    def change(request: AuthenticateBrokerRequest) -> None:
        for name, value in fields.items():
            if request.proof:
                setattr(request, name, value)

    return change


def in_both(**fields: Any) -> Callable[[AuthenticateBrokerRequest], None]:
    def change(request: AuthenticateBrokerRequest) -> None:
        for name, value in fields.items():
            setattr(request, name, value)

    return change


@pytest.mark.parametrize(
    "change",
    [
        second_only(proof=b"x" * 32),
        second_only(proof=b"x"),
        second_only(broker_epoch=51),
        second_only(nonce=b"n" * 32),
        second_only(broker_id=3),
        in_both(broker_id=9),
        in_both(broker_epoch=49),
        in_both(cluster_id="another"),
        in_both(address="two:9092"),
        in_both(nonce=b""),
        in_both(nonce=b"n" * 33),
        in_both(proof=b"x" * 32),
    ],
)
def test_anything_else_is_no_proof(change: Callable[[AuthenticateBrokerRequest], None]) -> None:
    world = World()
    world.change = change
    with pytest.raises((NotABroker, ConnectFailed)):
        world.prove()
    assert world.peer.proven_broker is None


def test_a_proof_that_is_passed_on_by_a_third_is_refused() -> None:
    """The broker connected to another address, where somebody relays what both say."""
    world = World()
    world.address = "two:9092"
    with pytest.raises(NotABroker, match="two:9092"):
        world.prove()
    assert world.peer.proven_broker is None


def test_a_broker_of_another_cluster_is_refused_whatever_it_can_prove() -> None:
    world = World()
    assert world.held is not None
    world.held = world.held._replace(cluster_id="another")
    with pytest.raises(NotABroker, match="another"):
        world.prove()
    assert world.peer.proven_broker is None


def test_a_proof_holds_for_one_challenge_only() -> None:
    world = World()
    sent: list[AuthenticateBrokerRequest] = []
    world.change = sent.append
    world.prove()
    world.peer.proven_broker = None
    with pytest.raises(NotABroker):
        asyncio.run(world.server.answer(world.peer, sent[1]))
    another = NotedPeer()
    asyncio.run(world.server.answer(another, sent[0]))
    with pytest.raises(NotABroker):
        asyncio.run(world.server.answer(another, sent[1]))
    assert (world.peer.proven_broker, another.proven_broker) == (None, None)


def test_the_answering_broker_proves_itself_too() -> None:
    """Its proof is not the one that it expects: it could not send back what it is sent."""
    world = World()

    def forge(answer: AuthenticateBrokerResponse) -> None:
        answer.proof = b"x" * 32

    world.change_answer = forge
    with pytest.raises(ConnectFailed, match="did not prove"):
        world.prove()
    challenge = Challenge(Claim(TWO, EPOCH, CLUSTER, ADDRESS, b"n" * 32), b"m" * 32)
    assert proof_of(SECRET, Side.ANSWERING, challenge) != proof_of(
        SECRET, Side.CONNECTING, challenge
    )


def test_only_the_listener_for_brokers_takes_them() -> None:
    world = World(listener="INSIDE")
    with pytest.raises(NotABroker):
        world.prove()
    world.peer = NotedPeer(listener="INSIDE")
    world.prove()
    assert world.peer.proven_broker == TWO


def test_a_connection_makes_one_claim_at_a_time() -> None:
    """Each may cause a read of the coordination service, before which those of brokers wait."""
    world = World()

    async def main() -> list[object]:
        world.service.gate = asyncio.Event()
        request = AuthenticateBrokerRequest(
            broker_id=7, broker_epoch=1, cluster_id=CLUSTER, address=ADDRESS, nonce=b"n" * 32
        )
        claims = [asyncio.ensure_future(world.server.answer(world.peer, request)) for _ in range(9)]
        await asyncio.wait(claims[1:])
        reads = world.service.reads
        world.service.gate.set()
        refused = await asyncio.gather(*claims, return_exceptions=True)
        assert (reads, len(refused)) == (1, 9)
        return list(refused)

    assert {type(one) for one in asyncio.run(main())} == {NotABroker}
    world.prove()
    assert world.peer.proven_broker == TWO


# -- very many claims --------------------------------------------------------------------------


def claims_of(world: World, host: str, count: int, *, first_id: int = 100) -> list[Any]:
    """Clients that claim to be brokers, each on a connection of its own."""
    requests = [
        AuthenticateBrokerRequest(
            broker_id=first_id + number,
            broker_epoch=1,
            cluster_id=CLUSTER,
            address=ADDRESS,
            nonce=b"n" * 32,
        )
        for number in range(count)
    ]
    return [
        asyncio.ensure_future(world.server.answer(NotedPeer(client_host=host), one))
        for one in requests
    ]


async def reaches(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("never")


def test_a_broker_does_not_wait_for_the_claims_of_another_address() -> None:
    world = World()

    async def main() -> None:
        world.service.gate = gate = asyncio.Event()
        flood = claims_of(world, "10.0.0.9", 40 * READS_MAX)
        await reaches(lambda: world.service.reads == READS_MAX)
        (broker,) = claims_of(world, "10.0.0.2", 1, first_id=TWO)
        await asyncio.sleep(0)
        gate.set()
        await asyncio.wait([broker])
        assert world.service.reads <= 4 * READS_MAX
        for one in flood:
            one.cancel()
        await asyncio.gather(*flood, broker, return_exceptions=True)

    asyncio.run(main())


def test_of_too_many_claims_those_of_the_address_with_the_most_are_told_to_try_again() -> None:
    world = World()

    async def main() -> None:
        world.service.gate = gate = asyncio.Event()
        (broker,) = claims_of(world, "10.0.0.2", 1)
        flood = claims_of(world, "10.0.0.9", 3 * WAITING_MAX, first_id=200)
        (late,) = claims_of(world, "10.0.0.3", 1, first_id=300)
        await reaches(lambda: sum(one.done() for one in flood) >= 2 * WAITING_MAX - READS_MAX)
        assert {type(one.exception()) for one in flood if one.done()} == {BrokerUnverifiable}
        assert not broker.done()
        assert not late.done()
        gate.set()
        found = await asyncio.gather(*flood, broker, late, return_exceptions=True)
        assert {type(one) for one in found[-2:]} == {NotABroker}, "their secrets were looked for"

    asyncio.run(main())


def test_a_claim_waits_for_the_service_and_for_others_no_longer_than_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broker_secrets, "READ_WAIT_S", 0.01)
    world = World()

    async def main() -> None:
        world.service.gate = asyncio.Event()
        found = await asyncio.gather(
            *claims_of(world, "10.0.0.9", 3 * READS_MAX), return_exceptions=True
        )
        assert {type(one) for one in found} == {BrokerUnverifiable}
        assert world.service.reads == READS_MAX

    asyncio.run(main())


def test_brokers_in_the_metadata_are_read_beside_all_claims_and_once() -> None:
    world = World()
    image = {TWO: BrokerImage(TWO, epoch=EPOCH)}

    async def main() -> None:
        world.service.gate = gate = asyncio.Event()
        flood = claims_of(world, "10.0.0.9", 10 * READS_MAX)
        await reaches(lambda: world.service.reads == READS_MAX)
        for _ in range(3):
            world.secrets.note_brokers(image)
        reads = [asyncio.ensure_future(one) for one in world.spawned]
        await reaches(lambda: world.service.reads > READS_MAX)
        for _ in range(10):
            await asyncio.sleep(0)
        assert world.service.reads == READS_MAX + 1
        gate.set()
        await asyncio.gather(*reads, *flood, return_exceptions=True)
        world.secrets.note_brokers(image)
        assert len(world.spawned) == len(reads), "it is known"

    asyncio.run(main())


def test_a_claim_that_is_given_up_leaves_its_turn_to_others() -> None:
    world = World()

    async def main() -> None:
        world.service.gate = gate = asyncio.Event()
        claims = claims_of(world, "10.0.0.9", 2 * READS_MAX)
        await reaches(lambda: world.service.reads == READS_MAX)
        for one in claims[1:]:
            one.cancel()
        gate.set()
        await asyncio.gather(*claims, return_exceptions=True)
        world.service.gate = None
        again = claims_of(world, "10.0.0.9", 2 * READS_MAX)
        found = await asyncio.gather(*again, return_exceptions=True)
        assert {type(one) for one in found} == {NotABroker}

    asyncio.run(main())


@pytest.mark.parametrize("data", [b"", b"5e", b"5e" * 33, b"xx" * 32, b"5E" * 32, b"\xff" * 64])
def test_a_secret_that_is_none_proves_nothing(data: bytes) -> None:
    """Such as that of a node that somebody emptied: everybody can compute its proofs."""
    world = World()
    world.service.nodes["/millstream/secrets/2"] = Node(data, EPOCH)
    assert world.held is not None
    world.held = world.held._replace(secret=Secret(data.decode("ascii", "replace")))
    with pytest.raises(NotABroker):
        world.prove()
    assert world.peer.proven_broker is None
    world.secrets.note_brokers({TWO: BrokerImage(TWO, epoch=EPOCH)})
    asyncio.run(world.spawned[0])


def test_a_broker_that_is_not_registered_yet_can_verify_none() -> None:
    """It does not know its cluster: that the other is of another one would mislead."""
    world = World()
    world.cluster_id = ""
    with pytest.raises(BrokerUnverifiable, match="not registered"):
        world.prove()
    assert world.service.reads == 0
    world.cluster_id = CLUSTER
    world.prove()
    assert world.peer.proven_broker == TWO


def test_a_broker_without_a_registration_connects_to_none() -> None:
    world = World()
    world.held = None
    with pytest.raises(ConnectFailed, match="not registered"):
        world.prove()


def test_secrets_do_not_come_from_the_stream_that_clients_see() -> None:
    source = system_randomness()
    state = source._source.getstate()
    assert source.secret(32) != source.secret(32)
    assert source._source.getstate() == state


def test_a_secret_is_not_printed() -> None:
    assert SECRET.reveal() not in repr(Registered(cast("Any", None), EPOCH, CLUSTER, SECRET))
