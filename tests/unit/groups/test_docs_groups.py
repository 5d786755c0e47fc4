"""docs/groups.md says what the code does."""

import re
from random import Random
from typing import Any

import pytest

from kits.groups.group_docs import MEMBER_STEPS, PAGE, with_diagrams
from kits.groups.shard_clients import ConsumerClient
from kits.groups.shard_kit import Shell
from kits.groups.shard_topics import FakeTopics
from millstream.groups import errors
from millstream.groups.consumer.member import MemberState
from millstream.groups.records.keys import CurrentAssignmentKey
from millstream.model.config.broker_keys import BROKER_KEYS
from millstream.testing.protocol_members.settings import MutableGroupSettings
from millstream.wire.errors import ErrorCode


def test_the_diagrams_are_those_of_the_tables() -> None:
    text = PAGE.read_text()
    assert text == with_diagrams(text), "run: python tests/kits/groups/group_docs.py"


def test_a_page_without_a_place_is_noticed() -> None:
    with pytest.raises(ValueError, match="classic"):
        with_diagrams("# Nothing\n")


Step = tuple[MemberState | None, MemberState | None]


def steps_of(seed: int) -> set[Step]:
    """Of five consumers that come and go, while a topic grows; staying in a state is no step."""
    random = Random(seed)
    settings = MutableGroupSettings(consumer_assignment_interval_ms=0)
    shell = Shell(settings=settings, topics=FakeTopics(t=5, u=1))
    states: dict[Any, MemberState] = {}
    seen: set[Step] = set()

    def look(write: Any) -> None:
        for key, value in write.entries:
            if isinstance(key, CurrentAssignmentKey):
                before = states.pop(key, None)
                after = None if value is None else MemberState(value.state)
                if after is not None:
                    states[key] = after
                if before is not after:
                    seen.add((before, after))

    shell.on_append = look
    clients = [ConsumerClient(shell, "g", f"c{n}", topics=("t", "u")) for n in range(5)]
    for number in range(200):
        client = random.choice(clients)
        if client.is_member and random.random() < 0.15:
            client.leave()
        else:
            client.heartbeat()
        if number % 40 == 39:
            shell.topics.grow("u", 1 + number // 20)
    return seen


def test_members_take_the_steps_of_the_diagram_and_no_others() -> None:
    assert set().union(*map(steps_of, range(6))) == MEMBER_STEPS.keys()


def test_keys_and_errors_have_their_names() -> None:
    page = PAGE.read_text()
    named = set(re.findall(r"`((?:group|offsets?)\.[a-z.]+)`", page)) - {
        "group.protocol",
        "group.instance.id",
        "group.id",
    }
    assert named <= BROKER_KEYS.keys()
    codes = set(re.findall(r"^\| ([A-Z_, ]+) \|", page, re.MULTILINE))
    told = {name.strip() for one in codes for name in one.split(",")}
    assert told <= ErrorCode.__members__.keys()
    assert len(told) >= 12
    assert issubclass(errors.GroupNotFound, errors.GroupRefused)


def test_defaults_are_those_of_the_keys() -> None:
    rows = re.findall(r"^\| `([a-z.]+)` \| (\d+)", PAGE.read_text(), re.MULTILINE)
    assert rows
    assert {name: BROKER_KEYS[name].default for name, _ in rows} == dict(rows)
