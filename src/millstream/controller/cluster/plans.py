"""What a decision of the controller looks like: what to write, and what is so once it is written.

Decisions are pure functions of an image. The shell writes the groups in their order, each in one
multi that is fenced by the controller's epoch (I-16), and takes the image over when all of them are
there. A controller that dies between two groups leaves what the next one can finish.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from millstream.controller.image import ClusterImage, ImageChange, TopicImage
from millstream.coordination.port import Operation

T = TypeVar("T")

Group = Sequence[Operation]
"""Carried out together or not at all. Several may share a multi, a group is never split."""


@dataclass(frozen=True, slots=True)
class Plan(Generic[T]):
    """A decision. Without groups nothing changes."""

    result: T
    image: ClusterImage
    """As it is when everything is written; the one before where nothing is."""
    groups: Sequence[Group] = ()
    change: ImageChange = field(default_factory=ImageChange)
    """Between the image before and `image`."""


class Policy(NamedTuple):
    """What settings say about a topic."""

    in_sync_min: Callable[[TopicImage], int]
    """`min.insync.replicas` as it is set. Decisions take no more than a partition has replicas: a
    limit by topic would change with other partitions, unnoticed by those that are eligible."""
    is_unclean_allowed: Callable[[TopicImage], bool]
    """`unclean.leader.election.enable`."""
    controller_epoch: int = 0
    """Of the controller that decides; states tell which one wrote them."""
