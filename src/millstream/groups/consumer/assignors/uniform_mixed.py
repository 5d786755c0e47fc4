"""`uniform` for members that subscribe to different topics.

First every member keeps those of its partitions that it still subscribes to. The rest goes, topic
by topic, to the subscriber with the fewest partitions; topics with the most partitions per
subscriber come first, because they leave the least choice. Then, topic by topic, partitions move
from the subscriber with the most to the one with the fewest until these differ by at most one,
repeated until nothing moves. For one topic that is optimal. For several topics that share only some
subscribers it is close to optimal: chains of moves through a third member are not searched, and the
rounds are limited, as in Kafka.
"""

import heapq
from typing import Final
from uuid import UUID

from millstream.groups.consumer.assignors.spec import GroupSpec, Targets
from millstream.groups.consumer.member import Assignment

ROUNDS_MAX: Final = 16
"""Each round about halves the remaining imbalance; Kafka has the same limit."""

UNASSIGNED: Final = -1


def assign_mixed(group: GroupSpec) -> Targets:
    """See the module."""
    return _Builder(group).build()


class _Builder:
    """Members are represented by their index in the group."""

    def __init__(self, group: GroupSpec) -> None:
        self.group = group
        self.member_ids = list(group.members)
        self.sizes = [0] * len(self.member_ids)
        self.subscribers: dict[UUID, list[int]] = {}
        for index, member in enumerate(group.members.values()):
            for topic_id in member.topic_ids:
                self.subscribers.setdefault(topic_id, []).append(index)
        self.owners = {
            topic_id: [UNASSIGNED] * group.partition_counts[topic_id]
            for topic_id in self.subscribers
        }
        self.topic_ids = sorted(self.subscribers, key=self._rank)

    def build(self) -> Targets:
        """Keep, hand out, even out."""
        self._keep()
        for topic_id in self.topic_ids:
            self._hand_out(topic_id)
        self._even_out()
        return self._targets()

    def _rank(self, topic_id: UUID) -> tuple[float, int, UUID]:
        subscribers = len(self.subscribers[topic_id])
        return (-self.group.partition_counts[topic_id] / subscribers, subscribers, topic_id)

    def _keep(self) -> None:
        for index, member in enumerate(self.group.members.values()):
            for topic_id, partitions in member.assignment.items():
                if topic_id not in member.topic_ids:
                    continue
                owners = self.owners[topic_id]
                for partition in partitions:
                    if partition < len(owners) and owners[partition] == UNASSIGNED:
                        owners[partition] = index
                        self.sizes[index] += 1

    def _hand_out(self, topic_id: UUID) -> None:
        owners = self.owners[topic_id]
        left = [partition for partition, owner in enumerate(owners) if owner == UNASSIGNED]
        if not left:
            return
        fewest = [(self.sizes[index], index) for index in self.subscribers[topic_id]]
        heapq.heapify(fewest)
        for partition in left:
            size, index = fewest[0]
            owners[partition] = index
            self.sizes[index] += 1
            heapq.heapreplace(fewest, (size + 1, index))

    def _even_out(self) -> None:
        shared = [one for one in self.topic_ids if len(self.subscribers[one]) > 1]
        quiet = 0
        for _ in range(ROUNDS_MAX):
            for topic_id in shared:
                quiet = 0 if self._even_out_topic(topic_id) else quiet + 1
                if quiet >= len(shared):
                    return

    def _even_out_topic(self, topic_id: UUID) -> bool:
        """Whether anything moved."""
        sizes, owners = self.sizes, self.owners[topic_id]
        subscribers = self.subscribers[topic_id]
        if max(sizes[one] for one in subscribers) - min(sizes[one] for one in subscribers) <= 1:
            return False
        fewest = [(sizes[index], index) for index in subscribers]
        heapq.heapify(fewest)
        held: dict[int, list[int]] = {}
        for partition, owner in enumerate(owners):
            held.setdefault(owner, []).append(partition)
        most = [(-sizes[index], index) for index in held]
        heapq.heapify(most)
        has_moved = False
        while most:
            taken_from = most[0][1]
            size, given_to = fewest[0]
            if sizes[taken_from] - size <= 1:
                break
            owners[held[taken_from].pop()] = given_to
            sizes[taken_from] -= 1
            sizes[given_to] += 1
            has_moved = True
            heapq.heapreplace(fewest, (size + 1, given_to))
            if held[taken_from]:
                heapq.heapreplace(most, (-sizes[taken_from], taken_from))
            else:
                heapq.heappop(most)
        return has_moved

    def _targets(self) -> Targets:
        made: list[dict[UUID, list[int]]] = [{} for _ in self.member_ids]
        for topic_id, owners in self.owners.items():
            for partition, owner in enumerate(owners):
                made[owner].setdefault(topic_id, []).append(partition)
        targets: Targets = {}
        for index, (member_id, member) in enumerate(self.group.members.items()):
            after: Assignment = {one: frozenset(parts) for one, parts in made[index].items()}
            targets[member_id] = member.assignment if member.assignment == after else after
        return targets
