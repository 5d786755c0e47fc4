"""The controller's metadata feed to brokers: numbered changes since a position, or a snapshot.

A position is (controller epoch, version). Changes are kept up to a bound; a broker that is further
behind, or comes from another controller, gets the whole image. Pure.
"""

from collections import deque
from typing import Final, NamedTuple

from millstream.controller.cluster.port import FeedPosition, MetadataDelta
from millstream.controller.image import ClusterImage, ImageChange
from millstream.model.invariant import invariant

CHANGES_MAX: Final = 1_000
"""Changes that are kept: minutes of a busy cluster, while a broker polls several times a second."""

CHANGED_PARTITIONS_MAX: Final = 20_000
"""Partitions in the kept changes: with more a snapshot is hardly larger."""

NO_POSITION: Final = FeedPosition(-1, -1)
"""The position of a broker that has nothing yet."""


class _Remembered(NamedTuple):
    version: int
    """Of the image that the change leads to."""
    change: ImageChange
    weight: int


class Feed:
    """The changes of one controller, from its first image on."""

    def __init__(
        self,
        controller_epoch: int,
        image: ClusterImage,
        *,
        changes_max: int = CHANGES_MAX,
        partitions_max: int = CHANGED_PARTITIONS_MAX,
    ) -> None:
        self.controller_epoch = controller_epoch
        self.image = image
        self._changes_max = changes_max
        self._partitions_max = partitions_max
        self._changes: deque[_Remembered] = deque()
        self._weight = 0
        self._start_version = image.version
        """Of the image that the oldest remembered change is based on."""

    @property
    def position(self) -> FeedPosition:
        """Of the newest image."""
        return FeedPosition(self.controller_epoch, self.image.version)

    def add(self, image: ClusterImage, change: ImageChange) -> None:
        """Advance to this image; `change` is how it differs from the last one."""
        invariant(
            image.version > self.image.version,
            "a feed goes forward only",
            version=image.version,
            after=self.image.version,
        )
        self.image = image
        weight = partition_count(change)
        self._changes.append(_Remembered(image.version, change, weight))
        self._weight += weight
        while len(self._changes) > self._changes_max or self._weight > self._partitions_max:
            oldest = self._changes.popleft()
            self._weight -= oldest.weight
            self._start_version = oldest.version

    def is_new(self, position: FeedPosition) -> bool:
        """Whether there is anything that a broker at this position does not have."""
        return position != self.position

    def since(self, position: FeedPosition) -> MetadataDelta:
        """The changes after the position, or the image as a whole."""
        return MetadataDelta(self.position, self.image, self._changes_since(position))

    def _changes_since(self, position: FeedPosition) -> list[ImageChange] | None:
        if position.controller_epoch != self.controller_epoch:
            return None
        known = {self._start_version, *(one.version for one in self._changes)}
        if position.version not in known:
            return None  # too old, or not a version of this controller
        return [one.change for one in self._changes if one.version > position.version]


def partition_count(change: ImageChange) -> int:
    """How many partitions the change touches; a topic counts as one more."""
    topics = [*change.created, *change.deleted, *change.reconfigured]
    count = sum(len(topic.partitions) + 1 for topic in change.created)
    count += len(topics) - len(change.created) + len(change.moved)
    grown = change.grown
    return count + sum(len(one.topic.partitions) - one.first_new_partition for one in grown)
