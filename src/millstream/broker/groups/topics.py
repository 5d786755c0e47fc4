"""The cluster's topics as groups see them: names, ids, partition counts and racks."""

from collections.abc import Callable, Collection
from uuid import UUID

from millstream.broker.requests.services import Services
from millstream.controller.image import ClusterImage, TopicImage
from millstream.groups.consumer.topics import TopicFacts
from millstream.model.ids import TopicId


class ImageTopics:
    """Implements `groups.consumer.topics.TopicsView` over the broker's image."""

    def __init__(self, services: Callable[[], Services]) -> None:
        self._services = services
        self._known: dict[str, tuple[TopicImage, TopicFacts]] = {}
        """Cached facts of topics that were requested: most topics have no subscribed group."""
        self._version = 1
        self._created_version = 1

    @property
    def version(self) -> int:
        return self._version

    @property
    def created_version(self) -> int:
        return self._created_version

    def changed(self, *, is_any_created: bool) -> None:
        """Topics were created, deleted or grew, or racks of brokers changed."""
        self._version += 1
        if is_any_created:
            self._created_version = self._version
        self._known.clear()

    def names(self) -> Collection[str]:
        return self._services().image.topics.keys()

    def by_name(self, name: str) -> TopicFacts | None:
        image = self._services().image
        topic = image.topics.get(name)
        return None if topic is None else self._facts(image, topic)

    def by_id(self, topic_id: UUID) -> TopicFacts | None:
        image = self._services().image
        topic = image.topics_by_id.get(TopicId(topic_id))
        return None if topic is None else self._facts(image, topic)

    def _facts(self, image: ClusterImage, topic: TopicImage) -> TopicFacts:
        known = self._known.get(topic.name)
        if known is not None and known[0] is topic:
            return known[1]
        racks = _racks_of(image, topic)
        facts = TopicFacts(topic.name, topic.topic_id, len(topic.partitions), racks)
        if known is not None and known[1] == facts:
            facts = known[1]  # only the leader or the ISR changed
        self._known[topic.name] = topic, facts
        return facts


def _racks_of(image: ClusterImage, topic: TopicImage) -> tuple[tuple[str, ...], ...]:
    racks = {broker_id: one.rack for broker_id, one in image.brokers.items() if one.rack}
    if not racks:
        return ()
    return tuple(
        tuple(racks[one] for one in partition.replicas if one in racks)
        for partition in topic.partitions
    )
