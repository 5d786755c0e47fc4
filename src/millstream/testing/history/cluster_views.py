"""What can be observed of a cluster at one time, as plain values.

The checks of a cluster work on these and on nothing else, so they can be tested on states that no
correct cluster ever reaches. A simulation or an offline scan fills them in.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Final, NamedTuple

NO_LEADER: Final = -1

_BATCH: Final = Struct(">qiibIhiqqqhi")
"""The first 57 bytes of a batch: base offset, length, leader epoch, magic, CRC, attributes, last
offset delta, two time stamps, producer id, producer epoch, base sequence."""
_BEFORE_LENGTH_BYTES: Final = 12


class PartitionKey(NamedTuple):
    """One partition of one topic; a topic that was deleted and created again has another id."""

    topic: str
    topic_id: str
    index: int  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"


class BatchView(NamedTuple):
    """What identifies a batch."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    crc: int
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1


class ReplicaView(NamedTuple):
    """One log on one broker."""

    broker: int
    key: PartitionKey
    log_start: int
    log_end: int
    high_watermark: int
    last_stable_offset: int
    recovery_point: int
    batches: Sequence[BatchView] = ()
    number: int = 0
    """Another number is another log: it was created again after the replica moved away and back."""


class LeaderClaim(NamedTuple):
    """A broker believes that it leads a partition."""

    broker: int
    key: PartitionKey
    leader_epoch: int
    isr: tuple[int, ...] = ()
    """Committed, as the broker knows it."""
    partition_epoch: int = 0
    """Of the state that the broker knows."""


@dataclass(frozen=True, slots=True)
class BrokerView:
    """One running process; one that is down has none."""

    broker: int
    incarnation: int
    """Counts its starts."""
    broker_epoch: int = -1
    has_lost_session: bool = False
    """It knows that its session is gone, and has no other yet."""
    replicas: Mapping[PartitionKey, ReplicaView] = field(default_factory=dict)
    claims: Mapping[PartitionKey, LeaderClaim] = field(default_factory=dict)


class CommittedPartition(NamedTuple):
    """What the coordination service says of a partition."""

    key: PartitionKey
    replicas: tuple[int, ...]
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    last_known_leader: int = NO_LEADER
    controller_epoch: int = 0
    partition_epoch: int = 0
    in_sync_min: int = 1
    lost: tuple[int, ...] = ()
    """Replicas that their brokers reported as failed."""

    @property
    def holders(self) -> tuple[int, ...]:
        """Replicas that have everything that was acknowledged."""
        return tuple(dict.fromkeys((*self.isr, *self.elr)))


@dataclass(frozen=True, slots=True)
class CommittedState:
    """The cluster as the coordination service has it."""

    partitions: Mapping[PartitionKey, CommittedPartition] = field(default_factory=dict)
    registered: Mapping[int, int] = field(default_factory=dict)
    """The broker epoch of every registered broker."""
    known_epochs: Mapping[int, int] = field(default_factory=dict)
    """The last epoch of each broker that the controller has processed."""
    controller: int = NO_LEADER
    controller_epoch: int = 0

    def is_registration_processed(self, broker: int) -> bool:
        """The controller has processed the incarnation that is registered."""
        epoch = self.registered.get(broker)
        return epoch is not None and self.known_epochs.get(broker) == epoch


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A whole cluster at one time."""

    at_s: float
    brokers: Mapping[int, BrokerView]
    committed: CommittedState

    def replicas_of(self, key: PartitionKey) -> list[ReplicaView]:
        found = [broker.replicas.get(key) for broker in self.brokers.values()]
        return [one for one in found if one is not None]

    def claims(self) -> Iterator[LeaderClaim]:
        for broker in self.brokers.values():
            yield from broker.claims.values()

    def partition_keys(self) -> list[PartitionKey]:
        """Of every partition that any running broker has."""
        brokers = self.brokers.values()
        return list(dict.fromkeys(key for broker in brokers for key in broker.replicas))


def batches_in(data: bytes) -> list[BatchView]:
    """The whole batches at the front of a segment's bytes."""
    found: list[BatchView] = []
    at, size = 0, len(data)
    while size - at >= _BATCH.size:
        base, length, epoch, _, crc, _, delta, _, _, producer, generation, sequence = (
            _BATCH.unpack_from(data, at)
        )
        end = at + _BEFORE_LENGTH_BYTES + length
        if length <= 0 or end > size:
            break
        found.append(BatchView(base, base + delta + 1, epoch, crc, producer, generation, sequence))
        at = end
    return found
