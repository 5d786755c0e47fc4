"""A cluster's administration is Apache Kafka's: the same questions to three brokers of each."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from conftest import ByName
from kits.broker.feature_updates_kit import CASES, Case, expected, outcome, requests
from kits.interop.admin_worlds import Shape, World, kafka_cluster, our_world
from kits.interop.client_kit import ConnectedClient
from kits.interop.kafka_tools import run_script
from kits.process.waiting_for import until
from kits.process.wire_client import WireClient
from millstream.testing.record_batches import BatchSpec, build_batch
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.api_versions import ApiVersionsRequest

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("admin")]

FACTOR, ASSIGNMENT = ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.INVALID_REPLICA_ASSIGNMENT
NONE, UNKNOWN = ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class Worlds(NamedTuple):
    kafka: World
    ours: World


@pytest.fixture(scope="module")
def worlds(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worlds]:
    with ExitStack() as stack:
        kafka = stack.enter_context(kafka_cluster(tmp_path_factory.mktemp("kafka"), jars))
        ours = stack.enter_context(our_world(tmp_path_factory.mktemp("ours")))
        yield Worlds(kafka, ours)


# -- features ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_feature_updates_are_answered_alike(worlds: Worlds, case: Case) -> None:
    for version in range(3):
        for request in requests(case, version):
            for world in worlds:
                answer = world.send(request, version)
                assert outcome(answer) == expected(case, version), (version, request)


def test_features_have_kafkas_levels(worlds: Worlds) -> None:
    """All that we have: those that are missing stand for what we do not have."""
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    theirs, mine = (
        {one.name: one.max_version_level for one in world.send(request, 4).finalized_features}
        for world in worlds
    )
    assert mine.items() <= theirs.items()
    assert theirs.keys() - mine.keys() == {
        "transaction.version",
        "share.version",
        "streams.version",
    }


# -- producers ---------------------------------------------------------------------------------


def test_every_replica_tells_its_producers(worlds: Worlds) -> None:
    for world in worlds:
        assert world.create("written") == NONE
        assert world.assign("elsewhere", 2) == NONE
        (shape,) = world.shapes("written", 1)
        assert shape.isr == [1, 2, 3]
        world.shapes("elsewhere", 1)
        _produce(world, "written")
        for broker_id in (1, 2, 3):
            _wait_for_producers(world, broker_id)
        for broker_id, code in ((1, ErrorCode.NOT_LEADER_OR_FOLLOWER), (2, NONE)):
            found = world.producers("elsewhere", 0, 7, broker_id=broker_id)
            assert found == [(code, 0), (UNKNOWN, 0)]


def _produce(world: World, topic: str) -> None:
    """One batch of an idempotent producer, at the leader."""
    (found,) = world.metadata(topic).topics
    batch = build_batch(
        [(None, b"x")], BatchSpec(producer_id=4000, producer_epoch=0, base_sequence=0)
    )
    with WireClient(world.servers[found.partitions[0].leader_id - 1]) as client:
        answer = client.produce(topic, bytes(batch)).responses[0]
    assert answer.partition_responses[0].error_code == NONE


def _wait_for_producers(world: World, broker_id: int) -> None:
    def is_told() -> bool:
        return world.producers("written", 0, broker_id=broker_id) == [(NONE, 1)]

    until(is_told, f"broker {broker_id} tells the producer")


# -- brokers that are down ---------------------------------------------------------------------


def test_while_brokers_are_down(worlds: Worlds, client_of: ByName) -> None:
    """The last of this file: it leaves one broker of three."""
    told = {}
    for name, world in zip(Worlds._fields, worlds, strict=True):
        java = client_of("java")
        told[name] = _with_fewer_and_fewer(
            world, ConnectedClient(java._client, java.kind, world.servers[0])
        )
    assert told["ours"] == told["kafka"]
    for step, answer in EXPECTED.items():
        assert told["ours"][step] == answer, step


ALL, TWO, ONE = Shape([1, 2, 3], [1, 2, 3], [], True), [1, 2], [1]
EXPECTED: dict[str, Any] = {
    "more replicas than brokers": FACTOR,
    "all, one fenced": [1, 2, 3],
    "with one fenced": NONE,
    "shape with one fenced": [Shape([1, 2, 3], TWO, [3], True)] * 4,
    "only the fenced one by hand": ASSIGNMENT,
    "led by another by hand": [Shape([1, 3], ONE, [3], True)],
    "as many as are alive": [Shape(TWO, TWO, [], True)] * 4,
    "grown with one fenced": NONE,
    "alone": NONE,
    "shape alone": [Shape([1, 2, 3], ONE, [2, 3], True)] * 2,
    "alone, one more than registered": FACTOR,
    "created by asking": [Shape([1, 2, 3], ONE, [2, 3], True)],
    "unregistered": NONE,
    "all, one unregistered": [1, 2],
    "one more than registered": FACTOR,
    "to the unregistered one by hand": ASSIGNMENT,
    "grown without enough": FACTOR,
    "asked for without enough": UNKNOWN,
    "asked for again": UNKNOWN,
    "as many as are registered": NONE,
}
"""So that both cannot agree on an unexpected answer."""


def _with_fewer_and_fewer(world: World, java: ConnectedClient) -> dict[str, Any]:
    told: dict[str, Any] = {}
    before = world.brokers()
    assert [one.is_fenced for one in before] == [False] * 3
    assert [one.rack for one in before] == [None] * 3
    told["more replicas than brokers"] = world.create("four", factor=4)
    world.create("grows")
    world.kill(3)
    world.wait_for_live(1, 2)
    assert world.brokers() == [*before[:2], before[2]._replace(is_fenced=True)]
    assert world.brokers(with_fenced=False) == world.brokers(version=1) == before[:2]
    told["all, one fenced"] = _endpoints(java, "--include-fenced-brokers")
    assert _endpoints(java) == [1, 2]
    told.update(_with_one_fenced(world))
    world.stop(2)
    world.wait_for_live(1)
    assert world.brokers() == [before[0], *(one._replace(is_fenced=True) for one in before[1:])]
    told.update(_alone(world))
    told["unregistered"] = world.unregister(3)
    until(lambda: len(world.brokers()) == 2, "broker 3 is forgotten")
    told["all, one unregistered"] = _endpoints(java, "--include-fenced-brokers")
    return told | _with_one_unregistered(world)


def _endpoints(java: ConnectedClient, *options: str) -> list[int]:
    """The ids that Kafka's tool lists."""
    lines = run_script(java, "kafka-cluster", "list-endpoints", *options).text.splitlines()
    return [int(found[0]) for line in lines if (found := re.match(r"\d+", line)) is not None]


def _with_one_fenced(world: World) -> dict[str, Any]:
    return {
        "with one fenced": world.create("after", partitions=4),
        "shape with one fenced": world.shapes("after", 4),
        "a dry run": world.create("dry", validate=True),
        "more than registered": world.create("more", factor=4),
        "led by another": world.assign("by-hand", 3, 1),
        "led by another by hand": world.shapes("by-hand", 1),
        "only the fenced one by hand": world.assign("fenced", 3),
        "fewer": world.create("fewer", partitions=4, factor=2),
        "as many as are alive": world.shapes("fewer", 4),
        "grown with one fenced": world.grow("grows", 3),
        "grown": world.shapes("grows", 3),
    }


def _alone(world: World) -> dict[str, Any]:
    told = {
        "alone": world.create("alone", partitions=2),
        "shape alone": world.shapes("alone", 2),
        "alone, one more than registered": world.create("alone-four", factor=4),
        "alone, grown": world.grow("grows", 4),
    }
    # Kafka says at first that it does not know the topic; we have it in the first answer.
    assert world.metadata_code("asked") in (NONE, UNKNOWN)
    return told | {"created by asking": world.shapes("asked", 1)}


def _with_one_unregistered(world: World) -> dict[str, Any]:
    return {
        "one more than registered": world.create("three"),
        "to the unregistered one by hand": world.assign("gone", 1, 3),
        "grown without enough": world.grow("grows", 5),
        "asked for without enough": world.metadata_code("too-few"),
        "asked for again": world.metadata_code("too-few"),
        "as many as are registered": world.create("two", factor=2),
    }
