"""How two images differ, as those who follow the metadata need to hear it. Pure."""

from collections.abc import Iterable, Sequence

from millstream.controller.image import (
    ClusterImage,
    GrownTopic,
    ImageChange,
    MovedPartition,
    TopicImage,
)
from millstream.runtime.turns import Pace, Steps, run_whole

Touched = Iterable[str]
"""Names of the topics that may differ."""


def difference(
    before: ClusterImage, after: ClusterImage, touched: Touched | None = None
) -> ImageChange:
    """The change from one to the other; with `touched` only these topics are looked at."""
    return run_whole(comparing(before, after, touched))


def comparing(
    before: ClusterImage, after: ClusterImage, touched: Touched | None = None
) -> Steps[ImageChange]:
    """`difference` in steps."""
    names = sorted({*before.topics, *after.topics} if touched is None else set(touched))
    change = ImageChange(
        brokers_changed=before.brokers is not after.brokers and before.brokers != after.brokers,
        brokers_reconfigured=_settings_of(before) != _settings_of(after),
    )
    pace = Pace()
    for name in names:
        old, new = before.topics.get(name), after.topics.get(name)
        if old is not new:
            _compare(old, new, change)
        if pace.is_due(1 + len(new.partitions) // 10 if new is not None else 1):
            yield None
    return change


def _settings_of(image: ClusterImage) -> dict[str, dict[str, str]]:
    return {name: dict(one) for name, one in image.broker_configs.items() if one}


def _compare(old: TopicImage | None, new: TopicImage | None, change: ImageChange) -> None:
    """Of two topics with one name; with another id it is another topic."""
    if old is not None and (new is None or new.topic_id != old.topic_id):
        change.deleted.append(old)
        old = None
    if new is None:
        return
    if old is None:
        change.created.append(new)
        return
    if dict(old.configs) != dict(new.configs):
        change.reconfigured.append(new)
    known_count = len(old.partitions)
    if len(new.partitions) > known_count:
        change.grown.append(GrownTopic(new, known_count))
    change.moved.extend(
        MovedPartition(new, after)
        for before, after in zip(old.partitions, new.partitions, strict=False)
        if before is not after and before != after
    )


def touched_by(changes: Sequence[ImageChange]) -> set[str]:
    """Names of the topics that changes are about."""
    return {
        topic.name
        for change in changes
        for topics in (
            change.created,
            change.deleted,
            change.reconfigured,
            (grown.topic for grown in change.grown),
            (moved.topic for moved in change.moved),
        )
        for topic in topics
    }
