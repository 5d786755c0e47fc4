"""Computes what differs between two images by comparing them.

Used where two images are known but not the changes between them: after a snapshot, and where a plan
was combined from several.
"""

from millstream.controller.image import (
    ClusterImage,
    GrownTopic,
    ImageChange,
    MovedPartition,
    TopicImage,
)
from millstream.model.invariant import invariant


def difference(before: ClusterImage, after: ClusterImage) -> ImageChange:
    """The change that leads from one to the other."""
    old, new = before.topics_by_id, after.topics_by_id
    change = ImageChange(
        created=[topic for topic_id, topic in new.items() if topic_id not in old],
        deleted=[topic for topic_id, topic in old.items() if topic_id not in new],
        brokers_reconfigured=before.broker_configs != after.broker_configs,
        brokers_changed=before.brokers != after.brokers,
    )
    for topic_id, topic in new.items():
        known = old.get(topic_id)
        if known is not None and known is not topic:
            _compare(known, topic, change)
    return change


def _compare(known: TopicImage, topic: TopicImage, change: ImageChange) -> None:
    count = len(known.partitions)
    invariant(count <= len(topic.partitions), "a topic has lost partitions", topic=topic.name)
    if count < len(topic.partitions):
        change.grown.append(GrownTopic(topic, count))
    if known.configs != topic.configs:
        change.reconfigured.append(topic)
    for was, now in zip(known.partitions, topic.partitions, strict=False):
        if was is not now and was != now:
            change.moved.append(MovedPartition(topic, now))
