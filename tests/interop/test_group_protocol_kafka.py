"""Consumer groups request by request: Apache Kafka and we answer, describe and write the same."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from kits.interop.group_protocol_kit import PARTITIONS, TOPIC, GroupScene, subscription
from kits.interop.waiting import wait_for
from kits.process.wire_client import WireClient
from millstream.testing.broker_thread import BrokerThread
from millstream.testing.peers.kafka import ApacheKafka
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

SETTINGS: Final = {
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    # Longer than any test: what is not assigned at once is not assigned.
    "group.consumer.assignment.interval.ms": "15000",
}
WITHOUT_CONSUMERS: Final = {"group.coordinator.rebalance.protocols": "classic"}
OURS_ALONE: Final = {"log.level": "ERROR"}

Play = Callable[[GroupScene], list[Any]]


class Both:
    """A broker of Kafka's and one of ours with the same topic."""

    def __init__(self, theirs: WireClient, ours: WireClient) -> None:
        self.theirs: Final = theirs
        self.ours: Final = ours

    def play(self, group: str, play: Play) -> list[Any]:
        """What both say, which must be the same."""
        expected, found = (play(GroupScene(one, group)) for one in (self.theirs, self.ours))
        assert found == expected
        return expected


@pytest.fixture(scope="module")
def both(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    directory = tmp_path_factory.mktemp("group-protocol")
    with ExitStack() as stack:
        kafka = stack.enter_context(ApacheKafka(directory, jars=jars, settings=SETTINGS))
        ours = stack.enter_context(BrokerThread(SETTINGS | OURS_ALONE))
        servers = (kafka.bootstrap_servers, ours.bootstrap_servers)
        clients = [stack.enter_context(WireClient(one)) for one in servers]
        for client in clients:
            client.create_topic(TOPIC, PARTITIONS)
        yield Both(*clients)


def leave(scene: GroupScene, member: str) -> Any:
    return scene.beat(member, -1, topic_partitions=None)


# -- epochs ------------------------------------------------------------------------------------


def test_the_first_subscription_makes_epoch_two(both: Both) -> None:
    """Also what is written; and the group goes on counting when it has been empty."""

    def play(scene: GroupScene) -> list[Any]:
        said = [scene.join("a", TOPIC), scene.describe()]
        said += [scene.join("b", TOPIC), scene.describe()]
        said += [leave(scene, "b"), scene.describe()]
        said += [leave(scene, "a"), scene.describe()]
        return [*said, scene.join("c", TOPIC), scene.describe(), *scene.records()]

    joined, described, *_ = both.play("epochs", play)
    assert joined["member_epoch"] == 2
    assert (described["group_epoch"], described["assignment_epoch"]) == (2, 2)


def test_a_topic_that_does_not_exist_makes_epoch_two_as_well(both: Both) -> None:
    def play(scene: GroupScene) -> list[Any]:
        return [scene.join("a", "no-such-topic"), scene.describe(), *scene.records()]

    assert both.play("no-such-topic", play)[0]["member_epoch"] == 2


def test_a_member_that_subscribes_to_nothing_is_in_epoch_one(both: Both) -> None:
    """No epoch and no target is written for it; the first topic is assigned at once."""

    def play(scene: GroupScene) -> list[Any]:
        said = [scene.join("a"), scene.describe()]
        said += [scene.beat("a", 1, subscribed_topic_names=[TOPIC]), scene.describe()]
        return [*said, leave(scene, "a"), scene.describe(), *scene.records()]

    joined, _, subscribed, *_ = both.play("nothing", play)
    assert (joined["member_epoch"], subscribed["member_epoch"]) == (1, 2)


def test_a_pattern_is_in_epoch_one_until_it_is_resolved(both: Both) -> None:
    def play(scene: GroupScene) -> list[Any]:
        by_pattern = {"subscribed_topic_names": None, "subscribed_topic_regex": "ord.*"}
        joined = scene.join("a", **by_pattern)

        def resolved() -> Any:
            answer = scene.beat("a", joined["member_epoch"], topic_partitions=None)
            return answer if answer["member_epoch"] != joined["member_epoch"] else None

        assigned = wait_for("the pattern is resolved", resolved)
        return [joined, assigned, scene.describe(), *scene.records()]

    joined, assigned, *_ = both.play("pattern", play)
    assert (joined["member_epoch"], assigned["member_epoch"]) == (1, 2)


# -- from one protocol to the other ------------------------------------------------------------


def test_an_online_upgrade_is_assigned_at_once(both: Both) -> None:
    """The target that the classic group had does not begin the assignment interval."""

    def play(scene: GroupScene) -> list[Any]:
        member = scene.classic_join().member_id
        generation = scene.classic_join(member).generation_id
        scene.classic_sync(member, generation, handed_out=range(PARTITIONS))
        joined = scene.join("a", TOPIC)
        said = [joined, scene.describe(), scene.records()]
        said += [scene.classic_beat(member, generation), scene.classic_beat(member, generation + 1)]
        said += [scene.comparable(scene.classic_join(member)), scene.describe()]
        given = scene.beat("a", joined["member_epoch"], topic_partitions=None)
        # A later member waits for the interval: the upgrade's own assignment has begun it.
        return [*said, given, scene.describe(), scene.join("b", TOPIC), scene.describe()]

    joined, described, *_, late = both.play("upgrade", play)
    assert (joined["member_epoch"], described["group_state"]) == (2, "Reconciling")
    assert (late["group_epoch"], late["assignment_epoch"]) == (3, 2)


def test_a_nameless_classic_member_is_given_its_id_before_its_metadata_is_read(both: Both) -> None:
    def play(scene: GroupScene) -> list[Any]:
        return [scene.join("a", TOPIC), scene.comparable(scene.classic_join(metadata=b""))]

    _, refused = both.play("nameless", play)
    assert refused["error_code"] == ErrorCode.MEMBER_ID_REQUIRED


# -- where we differ on purpose (docs/adr/0008); one that is none any more goes from there ------


def codes(both: Both, group: str, play: Callable[[GroupScene], int]) -> list[ErrorCode]:
    """Kafka's and ours."""
    return [ErrorCode(play(GroupScene(one, group))) for one in (both.theirs, both.ours)]


def test_a_static_member_that_joins_again_need_not_have_left(both: Both) -> None:
    def play(scene: GroupScene) -> int:
        scene.join("a", TOPIC, instance_id="i")
        return int(scene.join("a", TOPIC, instance_id="i")["error_code"])

    assert codes(both, "static", play) == [ErrorCode.UNRELEASED_INSTANCE_ID, ErrorCode.NONE]


def test_a_fenced_classic_member_that_has_partitions_is_refused(both: Both) -> None:
    def play(scene: GroupScene) -> int:
        scene.join("a", TOPIC)
        return scene.classic_join("fenced", subscription(TOPIC, owned=[0])).error_code

    assert codes(both, "fenced", play) == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]


def test_unreadable_metadata_is_the_members_fault(both: Both) -> None:
    def play(scene: GroupScene) -> int:
        scene.join("a", TOPIC)
        return scene.classic_join("b", metadata=b"").error_code

    assert codes(both, "unreadable", play) == [
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    ]


# -- what is said besides the code -------------------------------------------------------------


def test_refusals_have_kafkas_words(both: Both) -> None:
    def play(scene: GroupScene) -> list[Any]:
        said = [scene.beat("nobody", 4), leave(scene, "nobody"), scene.describe()]
        said += [scene.classic_describe()]
        scene.join("a", TOPIC)
        scene.join("b", TOPIC, instance_id="i")
        said += [scene.classic_describe()]
        said += [scene.beat("a", epoch) for epoch in (9, 1, -2, -3)]
        said += [scene.beat("nobody", 2), leave(scene, "nobody")]
        said += [scene.join("c", TOPIC, instance_id="i"), scene.beat("c", 2, instance_id="i")]
        said += [scene.beat("c", 2, instance_id="j"), scene.join("", TOPIC)]
        said += [scene.join("c", TOPIC, server_assignor="sticky")]
        said += [scene.join("c", subscribed_topic_regex="(or")]
        for wrong in ({"rebalance_timeout_ms": -1}, {"topic_partitions": None}, {"rack_id": " "}):
            said += [scene.join("c", TOPIC, **wrong)]
        return said

    said = both.play("refusals", play)
    assert all(one["error_code"] and one["error_message"] for one in said)


def test_a_classic_group_is_no_consumer_group(both: Both) -> None:
    def play(scene: GroupScene) -> list[Any]:
        scene.classic_join(scene.classic_join().member_id)
        return [scene.beat("a", 1), leave(scene, "a"), scene.describe()]

    assert {one["error_code"] for one in both.play("classic", play)} == {
        ErrorCode.GROUP_ID_NOT_FOUND
    }


def test_without_the_protocol_there_is_a_code_and_no_message(jars: Path, tmp_path: Path) -> None:
    said = []
    heartbeat = ConsumerGroupHeartbeatRequest(group_id="group", member_id="a", member_epoch=0)
    described = ConsumerGroupDescribeRequest(group_ids=["group"])
    with (
        ApacheKafka(tmp_path, jars=jars, settings=WITHOUT_CONSUMERS) as kafka,
        BrokerThread(WITHOUT_CONSUMERS | OURS_ALONE) as ours,
    ):
        for servers in (kafka.bootstrap_servers, ours.bootstrap_servers):
            with WireClient(servers) as client:
                answers = [client.send(heartbeat, 1), *client.send(described, 1).groups]
                said.append([(one.error_code, one.error_message) for one in answers])
    theirs, mine = said
    assert mine == theirs == [(ErrorCode.UNSUPPORTED_VERSION, None)] * 2
