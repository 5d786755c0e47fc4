"""What replication needs from the rest of a broker in a cluster; nothing in a standalone broker."""

from collections.abc import Callable
from dataclasses import dataclass, field

from millstream.model.ids import NO_BROKER_EPOCH, BrokerEpoch, BrokerId, Offset, TopicPartition
from millstream.replication.isr_port import IsrProposals
from millstream.replication.throttle import ReplicaThrottle


@dataclass(slots=True)
class ReplicationDependencies:
    """Passed in when the broker is assembled; and the counters of ISR changes."""

    monotonic_s: Callable[[], float] = lambda: 0.0
    proposals: IsrProposals | None = None
    """None: the in-sync replicas are what the metadata says, and no change is ever proposed."""
    may_propose: Callable[[], bool] = lambda: True
    """False while the session with the coordination service is suspended (I-18): this leader cannot
    know whether another broker has been elected meanwhile."""
    may_lead: Callable[[], bool] = lambda: True
    """False when the session was lost after the metadata that is being applied was received: its
    steps continue, for their logs, but must not start leading anything (I-18)."""
    epoch_of: Callable[[BrokerId], BrokerEpoch | None] = lambda _: NO_BROKER_EPOCH
    """The epoch of a live broker according to the metadata; None for a broker that is not alive."""
    lag_max_s: Callable[[], float] = lambda: 30.0
    """`replica.lag.time.max.ms`."""
    is_rack_aware: Callable[[], bool] = lambda: False
    """Whether `replica.selector.class` is Kafka's RackAwareReplicaSelector (KIP-392)."""
    on_unclean: Callable[[TopicPartition, Offset, Offset], None] = lambda *_: None
    """Called when committed records are truncated: the old high watermark, and the new end below
    it."""
    leader_throttle: ReplicaThrottle = field(default_factory=ReplicaThrottle)
    """Limits what leaders send to followers that are not in sync."""
    isr_shrinks: int = 0
    isr_growths: int = 0

    def note_isr_change(self, *, before: int, after: int) -> None:
        """Count a change that was proposed."""
        self.isr_shrinks += after < before
        self.isr_growths += after > before
