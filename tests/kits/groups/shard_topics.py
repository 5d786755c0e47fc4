"""Topics as groups see them, changed by tests."""

from collections.abc import Collection
from uuid import UUID

from millstream.groups.consumer.topics import TopicFacts


class FakeTopics:
    """A `TopicsView` in which a topic's id is made from its number."""

    def __init__(self, **partition_counts: int) -> None:
        self.version = self.created_version = 0
        self._by_name: dict[str, TopicFacts] = {}
        self._made = 0
        for name, count in partition_counts.items():
            self.create(name, count)

    def create(self, name: str, partition_count: int) -> TopicFacts:
        """A new topic, with a new id."""
        self._made += 1
        self.version += 1
        self.created_version = self.version
        facts = TopicFacts(name, UUID(int=self._made), partition_count)
        self._by_name[name] = facts
        return facts

    def grow(self, name: str, partition_count: int) -> None:
        """More partitions."""
        self.version += 1
        self._by_name[name] = TopicFacts(name, self._by_name[name].topic_id, partition_count)

    def delete(self, name: str) -> None:
        """It is gone."""
        self.version += 1
        del self._by_name[name]

    def names(self) -> Collection[str]:
        return self._by_name.keys()

    def by_name(self, name: str) -> TopicFacts | None:
        return self._by_name.get(name)

    def by_id(self, topic_id: UUID) -> TopicFacts | None:
        return next((one for one in self._by_name.values() if one.topic_id == topic_id), None)
