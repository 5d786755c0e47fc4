"""To whom a request goes: said by its part in the cluster, found when it is sent."""

from enum import IntEnum
from typing import Final, NamedTuple

from millstream.model.ids import BrokerId, TopicPartition


class AnyBroker(NamedTuple):
    """Whoever can be reached."""

    def __str__(self) -> str:
        return "any broker"


class Controller(NamedTuple):
    """Who takes changes of topics and settings."""

    def __str__(self) -> str:
        return "the controller"


class Node(NamedTuple):
    """One broker by its id."""

    broker_id: BrokerId

    def __str__(self) -> str:
        return f"broker {self.broker_id}"


class LeaderOf(NamedTuple):
    """Who leads a partition."""

    partition: TopicPartition

    def __str__(self) -> str:
        return f"the leader of {self.partition}"


class CoordinatorKind(IntEnum):
    """What a coordinator looks after, as FindCoordinator numbers it."""

    GROUP = 0
    TRANSACTION = 1


class CoordinatorOf(NamedTuple):
    """Who looks after a group or a transactional id."""

    key: str
    kind: CoordinatorKind = CoordinatorKind.GROUP

    def __str__(self) -> str:
        return f"the coordinator of {self.kind.name.lower()} {self.key!r}"


Target = AnyBroker | Controller | Node | LeaderOf | CoordinatorOf

ANY: Final = AnyBroker()
CONTROLLER: Final = Controller()
