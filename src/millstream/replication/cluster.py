"""What replication needs of the rest of a broker in a cluster; a standalone one needs nothing."""

from collections.abc import Callable
from dataclasses import dataclass, field

from millstream.model.ids import NO_BROKER_EPOCH, BrokerEpoch, BrokerId, Offset, TopicPartition
from millstream.replication.isr_port import IsrProposals
from millstream.replication.throttle import ReplicaThrottle


@dataclass(slots=True)
class ReplicationDependencies:
    """Given when the broker is put together; and what is counted."""

    monotonic_s: Callable[[], float] = lambda: 0.0
    proposals: IsrProposals | None = None
    """None: the in-sync replicas are what the metadata says, and nobody asks for others."""
    may_propose: Callable[[], bool] = lambda: True
    """False while the session with the coordination service is suspended (I-18): whoever leads
    here cannot know whether another one does by now."""
    may_lead: Callable[[], bool] = lambda: True
    """False when the session was lost since the metadata that is being taken was shown: its steps
    go on, for their logs, and must not lead anything any more (I-18)."""
    epoch_of: Callable[[BrokerId], BrokerEpoch | None] = lambda _: NO_BROKER_EPOCH
    """Of a broker that is alive, by the metadata; None of one that is not."""
    lag_max_s: Callable[[], float] = lambda: 30.0
    """`replica.lag.time.max.ms`."""
    is_rack_aware: Callable[[], bool] = lambda: False
    """Whether `replica.selector.class` is Kafka's RackAwareReplicaSelector (KIP-392)."""
    on_unclean: Callable[[TopicPartition, Offset, Offset], None] = lambda *_: None
    """Told when records that counted are cut off: the high watermark, and the new end below it."""
    leader_throttle: ReplicaThrottle = field(default_factory=ReplicaThrottle)
    """For what leaders send to followers that are not in sync."""
    isr_shrinks: int = 0
    isr_growths: int = 0

    def note_isr_change(self, *, before: int, after: int) -> None:
        """A change was asked for."""
        self.isr_shrinks += after < before
        self.isr_growths += after > before
