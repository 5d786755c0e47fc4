"""Groups of foreign clients that all run on one cluster, and the faults that hit them."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from kits.interop.client_kit import PROGRAMS
from kits.interop.client_targets import PEERS
from millstream.testing.chaos.cluster.peer import KafkaProcesses
from millstream.testing.chaos.cluster.scene import MillstreamProcesses, ProcessFactory
from millstream.testing.chaos.groups.members import Group, Member
from millstream.testing.chaos.groups.programs import (
    CLIENTS,
    CONSUMER,
    COOPERATIVE,
    EAGER,
    MemberKind,
    Program,
)
from millstream.testing.chaos.groups.scene import GROUP_SETTINGS, GroupScene
from millstream.testing.peers.kafka import kafka_jars

ORDERS: Final = "^orders-.*"
PAYMENTS: Final = "payments"
STAYS, GOES, STATIC = "stays", "goes", "static"
"""Slots of programs: those that live through everything, those that are killed, and those whose
members come back under their old names."""


class Part(NamedTuple):
    """A member that a group is to have."""

    client: str
    protocol: str
    slot: str = STAYS
    instance: str | None = None


class Plan(NamedTuple):
    """The topics of a group, and its members."""

    parts: tuple[Part, ...]
    pattern: str | None = None


def _all(protocol: str, **slots: str) -> tuple[Part, ...]:
    """One member of each client that supports the protocol; `slots` names those that leave."""
    clients = [name for name, can in CLIENTS.items() if protocol in can.protocols]
    return tuple(
        Part(one, protocol, slots.get(one.replace("-", "_"), STAYS))
        for one in clients
        if one != "kafkajs"
    )


PLANS: Final[Mapping[str, Plan]] = {
    "eager": Plan(_all(EAGER, kafka_python=GOES, franz_go=GOES), pattern=ORDERS),
    "cooperative": Plan(_all(COOPERATIVE, confluent_kafka=GOES, java=GOES)),
    "server-side": Plan(
        (*_all(CONSUMER, franz_go=GOES), Part("java", CONSUMER, GOES)), pattern=ORDERS
    ),
    "kafkajs": Plan((*[Part("kafkajs", EAGER)] * 2, Part("kafkajs", EAGER, GOES))),
    "aiokafka": Plan((*[Part("aiokafka", EAGER)] * 2, Part("aiokafka", EAGER, GOES))),
    "static": Plan(
        (
            Part("java", EAGER, STAYS, "java-1"),
            Part("confluent-kafka", EAGER, STATIC, "confluent-1"),
            Part("aiokafka", EAGER, STATIC, "aiokafka-1"),
        )
    ),
    "static-server-side": Plan(
        (
            Part("java", CONSUMER, STAYS, "java-1"),
            Part("confluent-kafka", CONSUMER, STATIC, "confluent-1"),
        )
    ),
    # Not cooperative: librdkafka's assignor leaves user data in assignments, with which a group
    # cannot move.
    "migrating": Plan((Part("java", EAGER), Part("confluent-kafka", EAGER))),
}


class Story:
    """The scene with its groups; the chapters are the tests, in their order."""

    def __init__(self, scene: GroupScene) -> None:
        self.scene: Final = scene
        self._broken_by = ""

    @contextmanager
    def chapter(self, name: str) -> Iterator[GroupScene]:
        """Skip the chapters after one that failed: their starting state is not given."""
        if self._broken_by:
            pytest.fail(f"the chapter before failed: {self._broken_by}", pytrace=False)
        try:
            yield self.scene
        except BaseException:
            self._broken_by = name
            raise

    def begin(self) -> None:
        self.scene.start()
        self.scene.add_topic(PAYMENTS, 6)
        self.scene.add_topic("orders-1", 6)
        for name, plan in PLANS.items():
            topics = () if plan.pattern else (PAYMENTS,)
            self.scene.add_group(name, topics=topics, pattern=plan.pattern)

    def join(self, *slots: str) -> list[Member]:
        """All members of these slots, in all groups."""
        return [
            self.join_one(self.scene.groups[name], part)
            for name, plan in PLANS.items()
            for part in plan.parts
            if part.slot in slots
        ]

    def join_one(self, group: Group, part: Part) -> Member:
        kind = MemberKind(part.client, part.protocol)
        program = self.scene.program(part.client, part.slot)
        return group.join(kind, program, self.scene.servers, instance=part.instance)

    def rejoin(self, name: str) -> None:
        """Planned members that are not in the group now."""
        group = self.scene.groups[name]
        present = {member.instance for member in group.members.values()}
        for part in PLANS[name].parts:
            if part.instance not in present:
                self.join_one(group, part)

    def programs(self, slot: str) -> list[Program]:
        """The running programs of a slot."""
        clients = {part.client for plan in PLANS.values() for part in plan.parts}
        named = [(one, slot) for one in sorted(clients)]
        found = [self.scene.programs[key] for key in named if key in self.scene.programs]
        return [one for one in found if one.is_up]

    def members(self, slot: str) -> list[tuple[Group, Member]]:
        return [one for program in self.programs(slot) for one in self.scene.members_of(program)]

    def stall_some(self) -> list[tuple[Group, Member]]:
        """In each group the first member that is removed when it does not poll."""
        chosen = []
        for group in self.scene.groups.values():
            able = [
                one
                for one in group.members.values()
                if one.instance is None and CLIENTS[one.kind.client].leaves_when_stalled
            ]
            if able and len(group.members) > 1:
                group.stall(able[0], time.monotonic_ns())
                chosen.append((group, able[0]))
        return chosen


def cast_of(target: str) -> ProcessFactory:
    """Our brokers or Apache Kafka's, with the same settings."""
    if target == "kafka":
        return KafkaProcesses(kafka_jars(PEERS), settings=GROUP_SETTINGS)
    return MillstreamProcesses(settings=GROUP_SETTINGS)


def story_on(target: str, directory: Path) -> Story:
    scene = GroupScene(directory, cast_of(target), sources=PROGRAMS, cache=PEERS)
    return Story(scene)
