"""Replicas whose log has failed while its directory is usable: they begin again, from their leader.

A file was cut, zeroed, overwritten or removed while it was in use (ADR 0025). The controller knows
the replica as lost, another one leads, and no election counts on what is here any more: so the log
is deleted, an empty one takes its place, and the replica is fetched like a new one. Then it is
reported as usable, until the metadata shows that the controller knows.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Final

from millstream.broker.cluster.full_replicas import FullReplicas
from millstream.broker.cluster.member import ClusterMember
from millstream.controller.cluster.port import ReplicaName
from millstream.controller.image import NO_LEADER
from millstream.model.ids import NO_BROKER_EPOCH, BrokerId, TopicPartition
from millstream.observe.logs import get_logger
from millstream.replication.partitions import Partitions
from millstream.runtime.clock import Clock
from millstream.runtime.scheduler import CooperativeScheduler, StepGenerator

log = get_logger("millstream.broker.failed")

AGAIN_AFTER_S: Final = 600.0
"""A replica that fails again sooner than this stays offline until then: its disk destroys what is
written, and each attempt fetches everything.
"""


class FailedReplicas:
    """One per broker; runs on the loop's thread."""

    def __init__(
        self,
        member: ClusterMember,
        partitions: Callable[[], Partitions],
        full: FullReplicas,
        *,
        broker_id: BrokerId,
        clock: Clock,
        scheduler: CooperativeScheduler,
    ) -> None:
        self._member = member
        self._partitions = partitions
        self._full = full
        self._broker_id = broker_id
        self._clock = clock
        self._scheduler = scheduler
        self._replaced_s: dict[TopicPartition, float] = {}
        self._unreported: set[ReplicaName] = set()
        """Replaced ones that the metadata may still have as lost."""

    def check(self) -> Coroutine[Any, Any, None] | None:
        """The work to do now; None if there is nothing to replace."""
        if self._member.broker_epoch == NO_BROKER_EPOCH:
            return None
        for replica in [*self._unreported]:
            self._report(replica)
        partitions = self._partitions()
        if not partitions.has_lost or self._member.is_changing:
            return None
        due = [one for one in partitions.replaceable() if self._is_due(one)]
        if not due:
            return None
        steps = self._member.between_changes_steps(self._replace_steps(due))
        return self._scheduler.run(steps, name="replace failed logs")

    def _is_due(self, name: TopicPartition) -> bool:
        last_s = self._replaced_s.get(name)
        return last_s is None or self._clock.monotonic_s() - last_s >= AGAIN_AFTER_S

    def _replace_steps(self, names: list[TopicPartition]) -> StepGenerator[None]:
        partitions = self._partitions()
        for name in names:
            follower = partitions.follower(name)
            if follower is None:
                continue
            self._replaced_s[name] = self._clock.monotonic_s()
            cause, topic_id = follower.log.failure, follower.topic_id
            yield from partitions.begin_again_steps(name)
            self._unreported.add(ReplicaName(topic_id, name.partition))
            log.error(
                "replaced a failed log; its records are fetched from the leader",
                partition=str(name),
                cause=cause,
            )

    def _report(self, replica: ReplicaName) -> None:
        """Not without a leader: the controller keeps the mark then, as the log may be empty."""
        topic = self._member.image.topics_by_id.get(replica.topic_id)
        facts = topic.partitions if topic is not None else ()
        partition = facts[replica.partition] if replica.partition < len(facts) else None
        if topic is None or partition is None or self._broker_id not in partition.lost:
            self._unreported.discard(replica)
            return
        follower = self._partitions().follower(TopicPartition(topic.name, replica.partition))
        if follower is None or follower.log.failure is not None:
            self._unreported.discard(replica)
        elif partition.leader not in (NO_LEADER, self._broker_id):
            self._full.note_usable(replica)
