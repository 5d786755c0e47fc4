"""Targets of requests by role; the broker is found when a request is sent."""

from enum import IntEnum
from typing import Final, NamedTuple

from millstream.model.ids import BrokerId, TopicPartition


class AnyBroker(NamedTuple):
    """Any reachable broker."""

    def __str__(self) -> str:
        return "any broker"


class Controller(NamedTuple):
    """The controller, for changes of topics and settings."""

    def __str__(self) -> str:
        return "the controller"


class Node(NamedTuple):
    """One broker by its id."""

    broker_id: BrokerId

    def __str__(self) -> str:
        return f"broker {self.broker_id}"


class LeaderOf(NamedTuple):
    """The leader of a partition."""

    partition: TopicPartition

    def __str__(self) -> str:
        return f"the leader of {self.partition}"


class CoordinatorKind(IntEnum):
    """Key types of FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


class CoordinatorOf(NamedTuple):
    """The coordinator of a group or a transactional id."""

    key: str
    kind: CoordinatorKind = CoordinatorKind.GROUP

    def __str__(self) -> str:
        return f"the coordinator of {self.kind.name.lower()} {self.key!r}"


Target = AnyBroker | Controller | Node | LeaderOf | CoordinatorOf

ANY: Final = AnyBroker()
CONTROLLER: Final = Controller()
