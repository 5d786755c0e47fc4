"""How a leader proposes another set of in-sync replicas; the broker sends it to the controller."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from millstream.model.errors import OperatingError
from millstream.model.ids import BrokerEpoch, BrokerId, LeaderEpoch, TopicId, TopicPartition


class IsrMember(NamedTuple):
    """A replica, and the broker epoch that it fetched with: a restarted one is not eligible
    (KIP-903).
    """

    broker_id: BrokerId
    broker_epoch: BrokerEpoch


class IsrProposal(NamedTuple):
    """The ISR that the leader proposes, and the state it is based on."""

    partition: TopicPartition
    topic_id: TopicId
    leader_epoch: LeaderEpoch
    partition_epoch: int
    isr: tuple[IsrMember, ...]


class IsrState(NamedTuple):
    """What the controller has committed."""

    leader: BrokerId
    leader_epoch: LeaderEpoch
    isr: tuple[BrokerId, ...]
    partition_epoch: int


IsrAnswer = IsrState | OperatingError
"""The new state, or why there is none: ProposalRefused where the change was definitely not made.
After any other error it may have been made, and the metadata decides."""


class IsrProposals(Protocol):
    """Sends proposals to the controller. Nothing here waits."""

    def propose(self, proposal: IsrProposal, done: Callable[[IsrAnswer], None]) -> None:
        """`done` is called once, later; never while this runs."""
