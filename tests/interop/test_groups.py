"""Consumer groups of every client on one cluster of three, all at one time.

The tests are chapters of one story and run in their order: members join, share, hand over, stop to
poll, restart, crash, and their coordinators are killed. The last one proves from what the members
noted (`history/groups.py`) that every record was processed at least once, that no partition had two
owners in one generation or was handed over before its release, and that committed offsets never
went back.
"""

from collections.abc import Iterator

import pytest

from kits.interop.client_targets import TARGET_NAMES
from kits.interop.group_story import GOES, ORDERS, PAYMENTS, STATIC, STAYS, Part, Story, story_on
from millstream.testing.chaos.groups.programs import CONSUMER, EAGER
from millstream.testing.chaos.network.world import require_networks
from millstream.testing.history.groups import GroupHistory
from millstream.testing.peers.client_programs import RUNTIMES
from millstream.testing.peers.runtimes import require_runtime

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("groups"),
]


@pytest.fixture(scope="module", params=TARGET_NAMES)
def story(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Story]:
    require_networks()
    require_runtime(*{name for names in RUNTIMES.values() for name in names})
    made = story_on(request.param, tmp_path_factory.mktemp("groups"))
    try:
        made.begin()
        yield made
    finally:
        made.scene.close()


def test_members_join_and_share_the_partitions(story: Story) -> None:
    with story.chapter("join") as scene:
        story.join(STAYS, STATIC)
        scene.wait_stable("the first members share the partitions")


def test_later_members_get_their_share(story: Story) -> None:
    """Cooperative and server-side members hand over one partition at a time, and release first."""
    with story.chapter("share") as scene:
        story.join(GOES)
        scene.wait_stable("every member has a share")
        scene.check()


def test_new_partitions_and_new_topics_of_a_pattern_are_read(story: Story) -> None:
    with story.chapter("topics") as scene:
        scene.add_partitions(PAYMENTS, 9)
        scene.add_topic("orders-2", 3)
        assert all(scene.groups[name].pattern == ORDERS for name in ("eager", "server-side"))
        scene.wait_stable("what is new is owned and read")


def test_member_that_stops_to_poll_is_replaced_and_comes_back(story: Story) -> None:
    with story.chapter("stall") as scene:
        stalled = story.stall_some()
        scene.wait_stable("others have what the stalled ones had", is_shared=False)
        for group, member in stalled:
            group.wake(member)
        scene.wait_stable("the stalled ones are back")
        scene.check()


def test_static_members_restart_without_a_rebalance(story: Story) -> None:
    """After a stop or a kill: a member that is back before its session ends keeps its partitions.

    In the next protocol only in good order: the name of a killed member is taken until its
    session ends, and clients give up when they are told so.
    """
    with story.chapter("static") as scene:
        groups = [scene.groups["static"], scene.groups["static-server-side"]]
        before = [_others(group.history) for group in groups]
        for group, member in [*story.members(STAYS), *story.members(STATIC)]:
            is_static = member.instance is not None
            if is_static and (member.kind.protocol == CONSUMER or member.kind.client == "java"):
                group.leave(member)
        for client in ("confluent-kafka", "aiokafka"):
            scene.kill_program(scene.program(client, STATIC))
        for name in ("static", "static-server-side"):
            story.rejoin(name)
        scene.wait_stable("the old names have their partitions again", groups)
        scene.check()
        assert [_others(group.history) for group in groups] == before


def _others(history: GroupHistory) -> set[int]:
    """The generations that there were: a rebalance makes a new one."""
    return {claim.generation for story in history.members.values() for claim in story.claims}


def test_group_moves_to_the_next_protocol_and_back_while_it_works(story: Story) -> None:
    with story.chapter("migration") as scene:
        group = scene.groups["migrating"]
        classic = list(group.members.values())
        modern = [story.join_one(group, Part("java", CONSUMER))]
        scene.wait_stable("classic and new members share", [group])
        modern.append(story.join_one(group, Part("confluent-kafka", CONSUMER)))
        for member in classic:
            group.leave(member)
            scene.wait_stable("new members take over", [group])
        back = story.join_one(group, Part("java", EAGER))
        scene.wait_stable("a classic member is back", [group])
        for member in modern:
            group.leave(member)
        scene.wait_stable("the group is a classic one again", [group])
        assert list(group.members.values()) == [back]
        scene.check()


def test_crashed_members_are_replaced(story: Story) -> None:
    with story.chapter("crash") as scene:
        for program in story.programs(GOES):
            scene.kill_program(program)
        scene.wait_stable("the survivors have everything")
        scene.check()


def test_coordinator_is_killed_in_the_middle_of_a_rebalance(story: Story) -> None:
    with story.chapter("coordinator") as scene:
        for name in ("eager", "server-side"):
            if name == "eager":
                story.join(GOES)  # and while they do
            victim = scene.coordinator(scene.groups[name])
            scene.brokers[victim].kill()
            scene.wait_stable("another coordinator goes on")
            scene.brokers[victim].start()
            scene.wait_stable("the old one is back")
            scene.check()


def test_members_leave(story: Story) -> None:
    with story.chapter("leave") as scene:
        for group, member in story.members(GOES):
            group.leave(member)
        scene.wait_stable("those who stay have everything")


def test_every_record_was_processed_and_nothing_was_owned_twice(story: Story) -> None:
    with story.chapter("end") as scene:
        told = scene.finish()
        for name, figures in told.items():
            assert figures["records produced"] > 500, name
            assert figures["commits"] > 50, name
            assert figures["reads of committed offsets"] > 50, name
            assert figures["generations"] >= 2, name
            # At least once, not over and over.
            assert figures["records processed again"] < figures["records produced"], name
