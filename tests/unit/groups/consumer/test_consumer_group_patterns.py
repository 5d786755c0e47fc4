"""Subscriptions by pattern: resolved after the join, together, and again when topics come."""

import pytest

from kits.groups.consumer_group_kit import FakeTopics, GroupWorld
from millstream.groups.errors import InvalidRegularExpression
from millstream.groups.records import keys
from millstream.groups.records.values import ConsumerGroupRegularExpressionValue


def a_world() -> GroupWorld:
    return GroupWorld(FakeTopics(orders=2, payments=1))


def resolutions(world: GroupWorld) -> list[tuple[str, list[str] | None]]:
    return [
        (
            entry.key.expression,
            entry.value.topics
            if isinstance(entry.value, ConsumerGroupRegularExpressionValue)
            else None,
        )
        for entry in world.log
        if isinstance(entry.key, keys.RegularExpressionKey)
    ]


def test_a_pattern_is_resolved_after_the_join_and_brings_a_new_epoch() -> None:
    world = a_world()
    joined = world.join("a", subscribed_topic_regex="or.*")
    assert (joined.member_epoch, world.assignment_in(joined)) == (1, {})
    world.tick()
    assert resolutions(world) == [("or.*", ["orders"])]
    answer = world.heartbeat("a", 1)
    assert (answer.member_epoch, world.assignment_in(answer)) == (2, {"orders": [0, 1]})
    assert world.group.subscribed_topics() == {"orders"}


def test_a_pattern_that_is_none_is_refused_and_nothing_happens() -> None:
    world = a_world()
    with pytest.raises(InvalidRegularExpression):
        world.join("a", subscribed_topic_regex="(or")
    assert not world.log
    world.join("a", "orders")
    with pytest.raises(InvalidRegularExpression):
        world.heartbeat("a", 2, subscribed_topic_regex="*")


def test_new_topics_are_found_but_not_more_often_than_every_ten_seconds() -> None:
    world = a_world()
    world.join("a", subscribed_topic_regex=".*s")
    world.tick()
    world.heartbeat("a", 1)
    world.topics.create("refunds", 1)
    world.heartbeat("a", 2)
    world.pass_ms(10_000)
    assert len(resolutions(world)) == 1
    world.pass_ms(1)
    assert resolutions(world)[1:] == [(".*s", ["orders", "payments", "refunds"])]
    assert "refunds" in (world.assignment_in(world.heartbeat("a", 2)) or {})


def test_topics_that_are_gone_are_dropped_in_the_end() -> None:
    world = a_world()
    world.join("a", subscribed_topic_regex=".*s")
    world.tick()
    owned = world.assignment_in(world.heartbeat("a", 1))
    assert owned == {"orders": [0, 1], "payments": [0]}
    world.topics.delete("payments")
    response = world.heartbeat("a", 2, owned={"orders": [0, 1]})
    assert world.assignment_in(response) == {"orders": [0, 1]}
    for _ in range(31):
        world.pass_ms(20_000)
        world.heartbeat("a", world.group.epoch, owned={"orders": [0, 1]})
    world.tick()
    assert resolutions(world)[-1] == (".*s", ["orders"])


def test_a_second_member_with_the_same_pattern_needs_no_resolution() -> None:
    world = a_world()
    world.join("a", subscribed_topic_regex="or.*")
    world.tick()
    world.join("b", subscribed_topic_regex="or.*")
    world.tick()
    assert len(resolutions(world)) == 1
    assert world.group.epoch == 3


def test_the_record_of_a_pattern_goes_with_its_last_member() -> None:
    world = a_world()
    world.join("a", subscribed_topic_regex="or.*")
    world.tick()
    world.join("b", subscribed_topic_regex="or.*")
    world.heartbeat("a", -1)
    assert resolutions(world)[-1] == ("or.*", ["orders"])
    world.heartbeat("b", 3, subscribed_topic_regex="pay.*")
    assert resolutions(world)[-1] == ("or.*", None)
    world.pass_ms(11_000)
    assert resolutions(world)[-1] == ("pay.*", ["payments"])
    world.heartbeat("b", -1)
    assert resolutions(world)[-1] == ("pay.*", None)
    assert not world.group.subscribed_topics()


def test_names_and_a_pattern_together() -> None:
    world = a_world()
    world.join("a", "payments", subscribed_topic_regex="or.*")
    world.tick()
    assert world.assignment_in(world.heartbeat("a", 2)) == {"payments": [0], "orders": [0, 1]}


def test_a_refused_resolution_is_tried_again() -> None:
    world = a_world()
    world.join("a", subscribed_topic_regex="or.*")
    world.refuses = True
    world.tick()
    assert not resolutions(world)
    world.refuses = False
    world.heartbeat("a", 1)
    world.tick()
    assert resolutions(world) == [("or.*", ["orders"])]
