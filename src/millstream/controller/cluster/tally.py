"""Counts what changes did to partitions, for metrics: elections, ISR changes, moves. Pure."""

from dataclasses import dataclass

from millstream.controller.image import NO_LEADER, ClusterImage, ImageChange


@dataclass(slots=True)
class Tally:
    """Counters over all terms of one broker as controller; they only grow."""

    elections: int = 0
    """Partitions that got another leader, or the same one again with a new epoch."""
    unclean_elections: int = 0
    """Of those, elections of a replica that was not in sync: acknowledged records may be lost."""
    last_leader_elections: int = 0
    """Of those, elections of the last leader, which was not shut down cleanly."""
    isr_shrinks: int = 0
    isr_growths: int = 0
    reassignments_begun: int = 0
    reassignments_ended: int = 0
    """Completed, or cancelled."""

    def count(self, before: ClusterImage, change: ImageChange) -> None:
        """Count what the change did to partitions that existed before."""
        for moved in change.moved:
            topic = before.topics_by_id.get(moved.topic.topic_id)
            new = moved.partition
            if topic is None or new.index >= len(topic.partitions):
                continue
            old = topic.partitions[new.index]
            if new.leader != NO_LEADER and new.leader_epoch > old.leader_epoch:
                self.elections += 1
            if not set(old.isr).issubset(new.isr):
                self.isr_shrinks += 1
            if not set(new.isr).issubset(old.isr):
                self.isr_growths += 1
            was_moving, is_moving = (bool(one.adding or one.removing) for one in (old, new))
            self.reassignments_begun += is_moving and not was_moving
            self.reassignments_ended += was_moving and not is_moving
