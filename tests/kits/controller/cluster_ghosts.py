"""What brokers really have, beside what the controller believes: the judge of its elections.

A partition has a high watermark, and each replica an end. Records are committed the way leaders
do it: on all of the in-sync set, while that is large enough. A broker that stops uncleanly loses
some of its end. A leader that lacks committed records must have been reported as unclean.
"""

from dataclasses import dataclass, field
from random import Random

from millstream.controller.cluster.elections import UncleanElection
from millstream.controller.cluster.plans import Policy
from millstream.controller.image import NO_LEADER, ClusterImage, PartitionImage, TopicImage
from millstream.model.ids import BrokerEpoch, BrokerId, LeaderEpoch, TopicId

Incarnations = dict[BrokerId, BrokerEpoch]
ProposedIsrs = dict[tuple[TopicId, int], list[BrokerId]]


@dataclass
class _Ghost:
    """The truth about one partition."""

    high_watermark: int = 0
    ends: dict[BrokerId, int] = field(default_factory=dict)
    leaders: dict[LeaderEpoch, tuple[BrokerId, BrokerEpoch]] = field(default_factory=dict)
    leader_epoch: LeaderEpoch = LeaderEpoch(-1)  # noqa: RUF009 - a number


class Ghosts:
    """The truth about all partitions."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._ghosts: dict[tuple[TopicId, int], _Ghost] = {}

    def of(self, topic: TopicImage, index: int) -> _Ghost:
        return self._ghosts.setdefault((topic.topic_id, index), _Ghost())

    def commit(
        self, image: ClusterImage, alive: Incarnations, policy: Policy, proposed: ProposedIsrs
    ) -> None:
        """Leaders that are what the image says they are write and commit.

        Replicas that they have proposed to add are treated as in sync (I-09).
        """
        for topic in image.topics.values():
            for one in topic.partitions:
                if one.leader == NO_LEADER or self._random.random() < 0.3:
                    continue
                members = {*one.isr, *proposed.get((topic.topic_id, one.index), ())}
                if any(alive.get(member) != _epoch(image, member) for member in members):
                    continue  # a member that does not fetch holds the high watermark up
                if len(one.isr) >= min(policy.in_sync_min(topic), len(one.replicas)):
                    ghost = self.of(topic, one.index)
                    ghost.high_watermark += 1
                    for member in members:
                        ghost.ends[member] = ghost.high_watermark

    def catch_up(self, topic: TopicImage, index: int, member: BrokerId) -> None:
        """It has fetched all there is, and may be brought in."""
        ghost = self.of(topic, index)
        ghost.ends[member] = ghost.high_watermark

    def lose(self, broker_id: BrokerId) -> None:
        """It stopped without syncing what it had."""
        for ghost in self._ghosts.values():
            if ghost.ends.get(broker_id, 0) > 0:
                ghost.ends[broker_id] = self._random.randint(0, ghost.ends[broker_id])

    def check(
        self, image: ClusterImage, unclean: list[UncleanElection], alive: Incarnations
    ) -> None:
        """What the controller has just decided."""
        reported = {(one.partition.topic, one.partition.partition, one.leader) for one in unclean}
        for topic in image.topics.values():
            for one in topic.partitions:
                self._check(image, topic, one, reported)
                self._check_liveness(topic, one, image, alive)

    def _check(
        self,
        image: ClusterImage,
        topic: TopicImage,
        one: PartitionImage,
        reported: set[tuple[str, int, BrokerId]],
    ) -> None:
        ghost = self.of(topic, one.index)
        name = f"{topic.name}-{one.index}: {one} {ghost}"
        assert one.leader_epoch >= ghost.leader_epoch, f"I-15 the epoch went back: {name}"
        is_new = one.leader_epoch > ghost.leader_epoch
        ghost.leader_epoch = one.leader_epoch
        if one.leader == NO_LEADER:
            return
        leads = one.leader, _epoch(image, one.leader)
        assert ghost.leaders.setdefault(one.leader_epoch, leads) == leads, f"I-15 {name}"
        if not is_new:
            return
        end = ghost.ends.get(one.leader, 0)
        if end < ghost.high_watermark:
            is_reported = (topic.name, one.index, one.leader) in reported
            assert is_reported, f"I-01, I-14 a leader without committed records: {name}"
            ghost.high_watermark = end
            for member in ghost.ends:
                ghost.ends[member] = min(ghost.ends[member], end)

    def _check_liveness(
        self, topic: TopicImage, one: PartitionImage, image: ClusterImage, alive: Incarnations
    ) -> None:
        can = [member for member in (*one.isr, *one.elr) if not image.brokers[member].is_fenced]
        assert one.leader != NO_LEADER or not can, f"I-39 {topic.name} {one}"
        assert all(member in image.brokers for member in one.isr), f"I-14 {one}"
        assert all(not image.brokers[member].is_fenced for member in one.isr), f"I-14 {one}"

    def check_members(self, image: ClusterImage) -> None:
        """Every in-sync replica has what was committed (I-13), and the eligible ones too.

        What a broker that is down has lost is checked when it joins.
        """
        for topic in image.topics.values():
            for one in topic.partitions:
                ghost = self.of(topic, one.index)
                for member in (*one.isr, *one.elr):
                    if image.brokers[member].is_fenced:
                        continue
                    assert ghost.ends.get(member, 0) >= ghost.high_watermark, (
                        f"I-13, I-14 {member} lacks records of {topic.name} {one} {ghost}"
                    )


def _epoch(image: ClusterImage, broker_id: BrokerId) -> BrokerEpoch:
    return image.brokers[broker_id].epoch
